"""``docs/documents.md`` names a test of ours for each test of the documents: they are all there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "documents.md").read_text()
ROW = re.compile(r"^\| `(test_\w+)` \| `([\w/]+\.py)::(test_\w+)` \|", re.MULTILINE)
ROWS = ROW.findall(TEXT)
# Tests of each document: two versions of the first, then one each.
COUNTS = {"000 and 001": 7, "002": 28, "003": 5, "004": 29}


@cache
def functions_of(path):
    body = ast.parse((ROOT / path).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("theirs, path, ours", ROWS, ids=[theirs for theirs, _, _ in ROWS])
def test_the_test_that_shows_the_same_is_there(theirs, path, ours):
    assert ours in functions_of(path)


@pytest.mark.parametrize("document", COUNTS)
def test_every_test_of_a_document_has_a_row(document):
    section = next(part for part in TEXT.split("\n## ") if f" {document})" in part.partition("\n")[0])
    names = [theirs for theirs, _, _ in ROW.findall(section)]
    assert len(names) == len(set(names)) == COUNTS[document]
    assert len(names) == sum(line.startswith("| `") for line in section.splitlines())
