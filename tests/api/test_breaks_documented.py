"""docs/breaks.md has every reason code, with a function that breaks for that reason and one that does not."""

import ast
import pathlib
import re
from contextlib import suppress

import pytest
import torch
from package_sources import FILES, nodes_in, tree_of

import bothways
from bothways.errors import HINTS
from bothways.testing import difference

TEXT = (pathlib.Path(__file__).parent.parent.parent / "docs" / "breaks.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE))
WITHOUT_EXAMPLE = {"internal", "unstable_guard"}  # a bug gives the one, another thread the other


def blocks(code):
    return re.findall(r"```python\n(.*?)```", SECTIONS[code], re.DOTALL)


def run(source, name, **options):
    """Call the function of an example, compiled; gives its breaks, what it returned, and what it returns plainly."""
    names = {"torch": torch, "bothways": bothways, "__name__": "example"}
    exec(compile(source, f"<{name}>", "exec"), names)
    function = bothways.compile(names[name], backend="eager", **options)
    call = names.get("call", lambda function, x: function(x))
    result = None
    with suppress(Exception):
        result = call(function, torch.ones(3))
    return [found.code for found in bothways.explain(function).breaks], result, names[name]


def test_every_code_has_a_section_and_no_section_is_left_over():
    assert list(SECTIONS) and set(SECTIONS) == set(HINTS)


@pytest.mark.parametrize("code", sorted(set(SECTIONS) - WITHOUT_EXAMPLE))
def test_the_example_breaks_for_that_reason(code):
    source = blocks(code)[0]
    found, _, _ = run(source, "breaks", fullgraph=True)
    if found != [code]:  # a reason that only the rest of a function after another break can have
        rest, _, _ = run(source, "breaks")
        assert code in rest, f"{found} and {rest}"


@pytest.mark.parametrize("code", sorted(set(SECTIONS) - WITHOUT_EXAMPLE))
def test_the_fix_does_not_break(code):
    found, got, plain = run(blocks(code)[1], "fixed", fullgraph=True)
    assert found == []
    assert difference(plain(torch.ones(3)), got) is None


def test_every_code_is_one_that_the_compiler_can_give():
    words = set()
    for path in FILES:
        if path.name != "hints.py":
            nodes = nodes_in(tree_of(path))
            words |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert set(HINTS) <= words
