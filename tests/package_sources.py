"""The package as text and as syntax trees, read once for all tests that are about how its code is laid out."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "bothways"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    """Where a file is below the package, as tests and their tables write it."""
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@functools.cache
def nodes_in(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a tree. To walk through those of the package takes a second, and a dozen tests do."""
    return list(ast.walk(tree))
