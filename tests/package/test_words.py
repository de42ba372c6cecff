"""The package names things by what they are: who acts, and what a variable holds."""

import ast
import re

import pytest
from package_sources import FILES, PACKAGE, name_of, nodes_in, text_of, tree_of

# Where the caller, autograd, a guard or a listener is meant.
WHO = re.compile(r"\b(nobody|somebody|anybody|everybody|someone|anyone|has a say)\b", re.IGNORECASE)
# What every variable was at some time.
HOLLOW = {"found", "made", "given"}
# What classes, functions and parameters were called once that say as little.
VAGUE = {"forwards", "found", "given", "got", "habits", "how", "looked", "otherwise", "quietly", "stretches"}
# Of classes alone.
VAGUE_CLASSES = {
    "again", "both", "info", "inside", "later", "made", "observed", "reach", "seen", "taken", "usual", "wrong",
}  # fmt: skip


def hollow_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Every (line, name) of a variable or parameter of a function that does not say what it holds."""
    functions = [node for node in nodes_in(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    names = set()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            names.add((node.lineno, node.arg))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add((node.lineno, node.name))
    return sorted((line, name) for line, name in names if name in HOLLOW)


def test_who_acts_is_named():
    problems = []
    pages = [*PACKAGE.parent.glob("*.md"), *(PACKAGE.parent / "docs").rglob("*.md")]
    for path in [*FILES, *pages]:
        lines = enumerate(text_of(path).splitlines(), 1)
        name = path.relative_to(PACKAGE.parent)
        problems += [f"{name}:{number} {match[0]}" for number, line in lines if (match := WHO.search(line))]
    assert problems == []


def test_definitions_are_not_called_by_what_could_be_anything():
    definitions = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    problems = []
    for path in FILES:
        nodes = nodes_in(tree_of(path))
        names = {node.name for node in nodes if isinstance(node, definitions)}
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        problems += [f"{name_of(path)} {name}" for name in sorted(names) if name.lower().strip("_") in VAGUE]
        classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        problems += [f"{name_of(path)} {name}" for name in classes if name.lower().strip("_") in VAGUE_CLASSES]
    assert problems == []


def test_variables_are_called_by_what_they_hold():
    problems = []
    for path in FILES:
        if HOLLOW & set(re.findall(r"\w+", text_of(path))):
            problems += [f"{name_of(path)}:{line} {name}" for line, name in hollow_names(tree_of(path))]
    assert problems == []


@pytest.mark.parametrize(
    "text, names",
    [
        ("def f(found): pass", ["found"]),
        ("def f():\n    made, x = 1, 2", ["made"]),
        ("def f():\n    return [given for given in ()]", ["given"]),
        ("def f():\n    try: pass\n    except A as found: pass", ["found"]),
        ("def f(x):\n    return x.found + made", []),
        ("class A:\n    made: int = 0", []),
    ],
)
def test_the_rule_on_variables(text, names):
    assert [name for _, name in hollow_names(ast.parse(text))] == names
