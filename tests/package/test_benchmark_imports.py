"""Benchmarks and examples, which no test runs, import names that there are."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/*.py")]


def missing(path):
    """What a program imports from the package that is not there."""
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [
        (node.module, alias.name)
        for node in imports
        if node.module is not None and node.module.partition(".")[0] == "bothways"
        for alias in node.names
    ]
    return [f"{module}.{name}" for module, name in names if not _is_there(module, name)]


def _is_there(module, name):
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_what_is_imported_is_there(path):
    assert missing(path) == []


def test_what_is_not_there_is_found(tmp_path):
    program = "from bothways.replay.giving import NoSuchClass\nfrom bothways import replay\n"
    (tmp_path / "program.py").write_text(program)
    assert missing(tmp_path / "program.py") == ["bothways.replay.giving.NoSuchClass"]
