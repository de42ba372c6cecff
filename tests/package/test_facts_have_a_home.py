"""Nothing is known by a name that only two files agree on: the keys of ``node.meta`` and the attributes of functions
are listed, each with its home.

The package is read with ``ast`` and never imported. Each rule is a function from a syntax tree to what breaks it,
and is itself tested below.
"""

import ast
from collections.abc import Iterator

import pytest
from package_sources import FILES, PACKAGE, name_of, nodes_in, text_of, tree_of

# Attributes of callables that are ours, and which files may name them. Other files ask a function of the first.
ATTRIBUTES = {
    "__bothways__": ["runtime/dispatcher.py", "driver/compiled.py", "api/modules.py", "api/history.py",
                     "capture/values/nn/modules.py"],
    "__bothways_call__": ["node_facts.py", "runtime/nodes.py"],
    "__bothways_graph__": ["runtime/compiled_graph.py"],
    "__bothways_original__": ["api/modules.py", "api/dropin/facades.py", "capture/wrap.py"],
    "__bothways_resumed__": ["runtime/dispatcher.py"],
    "__bothways_twins__": ["driver/functions_applied.py"],
}  # fmt: skip

# What Python itself gives a function, ``ctypes`` one of C, and what PyTorch looks for on one that is an operation.
USUAL = {
    "__name__", "__qualname__", "__module__", "__doc__", "__kwdefaults__", "__wrapped__", "__code__",
    "argtypes", "restype", "tags",
}  # fmt: skip
ALLOWED = {*USUAL, *ATTRIBUTES}


def pytorch_keys() -> set[str]:
    """The keys of ``node.meta`` that are PyTorch's: ``node_facts`` lists them."""
    tree = tree_of(PACKAGE / "node_facts.py")
    assigned = {_name(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return {key.value for key in assigned["PYTORCH_KEYS"].keys}


def meta_keys(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every (line, key) by which something is looked up in, or put into, the ``meta`` of something."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Subscript) and _is_meta(node.value):
            yield node.lineno, ast.unparse(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_meta(node.func.value):
            if node.func.attr in ("get", "pop", "setdefault") and node.args:
                yield node.lineno, ast.unparse(node.args[0])
            elif node.func.attr == "update":
                yield node.lineno, "update"
        elif isinstance(node, ast.Compare) and any(map(_is_meta, node.comparators)):
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):
                yield node.lineno, ast.unparse(node.left)


def _is_meta(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def attributes_of_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every (line, attribute) that is put on a function defined in the same file."""
    functions = {node.name for node in nodes_in(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    methods = {
        member.name
        for node in nodes_in(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef)
    }
    for node in nodes_in(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in [part for target in targets for part in _parts(target)]:
            if isinstance(target, ast.Attribute) and _name(target.value) in functions - methods:
                yield node.lineno, target.attr


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def own_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every (line, name) of ours that is read from, or put on, an object: as an attribute or as a string."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("__bothways"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("__bothways"):
            yield node.lineno, node.value


def unknown_attributes(source: str) -> list[int]:
    """Lines that put an attribute on something whose type has none, which mypy had to be told to let pass."""
    ignored = {number for number, line in enumerate(source.splitlines(), 1) if "type: ignore[attr-defined]" in line}
    lines = []
    for node in ast.walk(ast.parse(source)) if ignored else ():
        for target in [part for target in getattr(node, "targets", ()) for part in _parts(target)]:
            if isinstance(target, ast.Attribute) and node.lineno in ignored and target.attr not in ALLOWED:
                lines.append(node.lineno)
    return lines


def test_facts_of_nodes_are_in_one_record():
    keys = pytorch_keys()
    problems = []
    for path in FILES:
        if (name := name_of(path)) != "node_facts.py":
            used = meta_keys(tree_of(path))
            problems += [f"{name}:{line} {key}" for line, key in used if key.strip("'\"") not in keys]
    assert problems == []


def test_functions_carry_nothing_but_what_is_listed():
    problems = []
    for path in FILES:
        name, set_here = name_of(path), attributes_of_functions(tree_of(path))
        problems += [f"{name}:{line} {attribute}" for line, attribute in set_here if attribute not in ALLOWED]
        problems += [f"{name}:{line}" for line in unknown_attributes(text_of(path))]
    assert problems == []


def test_each_attribute_of_ours_has_a_home():
    problems = []
    for path in FILES:
        name, used = name_of(path), own_names(tree_of(path))
        problems += [f"{name}:{line} {own}" for line, own in used if name not in ATTRIBUTES.get(own, ())]
    assert problems == []


# The rules themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, keys",
    [
        ("node.meta['val']", ["'val'"]),
        ("node.meta['own'] = True", ["'own'"]),
        ("a.b.meta.get('own')", ["'own'"]),
        ("'own' in node.meta", ["'own'"]),
        ("'own' not in node.meta", ["'own'"]),
        ("node.meta.setdefault(KEY, 1)", ["KEY"]),
        ("node.meta.update(own=1)", ["update"]),
        ("copy.meta = dict(node.meta)", []),
        ("fake.meta.is_leaf", []),
    ],
)
def test_the_rule_on_meta(text, keys):
    assert [key for _, key in meta_keys(ast.parse(text))] == keys


@pytest.mark.parametrize(
    "text, attributes",
    [
        ("def f(): pass\nf.opaque = True", ["opaque"]),
        ("def f():\n    def g(): pass\n    g.seen, g.__name__ = 1, 'h'", ["seen", "__name__"]),
        ("class A:\n    def f(self): pass\nf.x = 1", []),
        ("self.x = 1", []),
    ],
)
def test_the_rule_on_attributes_of_functions(text, attributes):
    assert [attribute for _, attribute in attributes_of_functions(ast.parse(text))] == attributes


def test_the_rule_on_attributes_that_mypy_does_not_know():
    assert unknown_attributes("f.seen = 1  # type: ignore[attr-defined]\nf.__name__ = ''\ng.x = 2") == [1]
    assert unknown_attributes("f.__qualname__ = ''  # type: ignore[attr-defined]") == []
