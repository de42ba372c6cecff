"""The state of a capture has owners: each part of the Tracer is changed by its own methods, and nowhere else.

The package is read with ``ast`` and never imported. A Tracer is known by the names that variables for one have.
"""

import ast
from collections.abc import Iterator

import package_sources
import pytest
from package_sources import PACKAGE, nodes_in, tree_of

CAPTURE = PACKAGE / "capture"
FILES = [path for path in package_sources.FILES if path.is_relative_to(CAPTURE)]

# The parts of a Tracer, by the attribute that holds them, and the file of their class: its owner.
PARTS = {
    "options": "state/options.py",
    "running": "state/running.py",
    "assumptions": "state/assumptions.py",
    "names": "state/namespace.py",
    "torch_state": "state/torch_state.py",
    "effects": "writing/effects.py",
    "graph": "recording/graph.py",
    "symbols": "shapes/symbols.py",
    "overrides": "overrides/overrides.py",
    "definitions": "writing/definitions.py",
    "computed_again": "state/computed_again.py",
}
TRACERS = {"tracer", "_tracer", "side"}
CHANGES = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update",
}  # fmt: skip


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every (line, expression) that changes a Tracer, or what a part of one holds, other than by a part's method."""
    parents = {child: node for node in nodes_in(tree) for child in ast.iter_child_nodes(node)}
    aliases = _aliases(tree)
    for node in nodes_in(tree):
        if isinstance(node, ast.Attribute) and (_is_tracer(node.value) or _is_part(node.value, aliases)):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                yield node.lineno, ast.unparse(node)
            elif _is_part(node.value, aliases) and _is_changed(node, parents):
                yield node.lineno, ast.unparse(node)


def _aliases(tree: ast.AST) -> set[str]:
    """Variables for a part, as in ``state = tracer.torch_state``."""
    names = set()
    for node in nodes_in(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_part(node.value, set()):
            names.add(node.targets[0].id)
    return names


def _is_tracer(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
    return name in TRACERS


def _is_part(node: ast.expr, aliases: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in aliases
    return isinstance(node, ast.Attribute) and node.attr in PARTS and _is_tracer(node.value)


def _is_changed(field: ast.Attribute, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether the list, set or dictionary in a field is changed here."""
    above = parents.get(field)
    if isinstance(above, ast.Subscript):
        return isinstance(above.ctx, (ast.Store, ast.Del)) and above.value is field
    return isinstance(above, ast.Attribute) and above.attr in CHANGES and isinstance(parents.get(above), ast.Call)


def test_nothing_changes_a_part_but_its_owner():
    problems = []
    for path in FILES:
        name = path.relative_to(CAPTURE).as_posix()
        problems += [f"{name}:{line} {what}" for line, what in changes(tree_of(path))]
    assert problems == []


def test_a_tracer_has_these_parts_and_nothing_else():
    tree = tree_of(CAPTURE / "tracer.py")
    stored = {
        node.attr
        for node in nodes_in(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    assert {name for name in stored if not name.startswith("_")} == set(PARTS)


def test_each_part_is_a_class_in_its_file():
    tree = tree_of(CAPTURE / "tracer.py")
    imported = {
        alias.name: f"{node.module}".removeprefix("bothways.capture.").replace(".", "/") + ".py"
        for node in nodes_in(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    made = {}
    for node in nodes_in(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target, value = node.targets[0], node.value
            if target.attr in PARTS and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                made[target.attr] = imported[value.func.id]
    assert made == {name: file for name, file in PARTS.items() if name != "options"}


# The rules themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, is_change",
    [
        ("tracer.fullgraph = True", True),
        ("self.tracer.effects = Effects()", True),
        ("tracer.options.fullgraph = True", True),
        ("side.torch_state.open_contexts += contexts", True),
        ("frame.tracer.running.frames.append(frame)", True),
        ("del tracer.names.namespace['x']", True),
        ("tracer.running.handling[-1] = raised", True),
        ("state = tracer.torch_state\nstate.grad_after = True", True),
        ("builder = tracer.graph\nbuilder.inputs.append(value)", True),
        ("tracer.running.enter(frame)", False),
        ("tracer.assumptions.add(guard)", False),
        ("tracer.overrides.leave()", False),
        ("frames = tracer.running.frames", False),
        ("self.running.frames = []", False),
        ("value.node = tracer.graph.item(node, 0, fake)", False),
        ("labels[tracer.options.tag] = 1", False),
    ],
)
def test_the_rule_on_changes(text, is_change):
    assert bool(list(changes(ast.parse(text)))) == is_change
