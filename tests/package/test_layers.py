"""The layers stay honest: what imports what, which parts of PyTorch are off limits, where private names live.

The package is read with ``ast`` and never imported, so imports inside functions or behind ``TYPE_CHECKING``
count like any other. Each rule is a function from one file to its violations, and is itself tested below.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from package_sources import FILES, PACKAGE, name_of, nodes_in, text_of, tree_of

# From top to bottom; a layer imports from itself and from those after it.
LAYERS = [
    "commands", "api", "report", "driver", "pipeline", "capture", "backward", "backends", "replay", "grad", "lower",
    "calls", "building", "cache", "record", "runtime",
]  # fmt: skip

# Inside of folders, from the bottom to the top: a room imports from itself and from those before it. What is only
# imported for annotations does not count.
ROOMS = {
    "capture": [
        "standins", "guards", "state", "values/core", "writing", "shapes", "bytecode", "values/collections",
        "values/code", "overrides", "values/objects", "bytecode/opcodes", "values/tensors", "values/torch_state",
        "values/hooks", "values/generators", "recording", "breaks", "calls", "program", "values/nn",
        "values/autograd", "values/higher_order", "values", "wrap", "tracer", "capture", "features", "__init__",
    ],
    "grad": [
        "tracing", "halves", "cutting", "nodes", "again", "backwards", "differentiated", "differentiate", "twins",
        "__init__",
    ],
    "lower": ["ir", "schedule", "host", "dialects", "__init__"],
}  # fmt: skip

# Imports that wait for a call, and why.
LATE = {
    ("grad/differentiated.py", "bothways.grad.twins"): "second derivatives differentiate again",
    ("backends/native.py", "bothways.lower.dialects.cuda.dialect.Cuda"): "most programs have no tensors on GPUs",
    ("replay/recorders.py", "bothways.replay.cuda_graphs.CudaGraphs"): "most programs have no tensors on GPUs",
    ("cache/trust.py", "grp"): "which Windows has not",
    ("cache/trust.py", "pwd"): "which Windows has not",
    ("torch_compat/functions.py", "torch._subclasses.fake_tensor"): "takes two seconds to load",
    ("torch_compat/functions.py", "torch._subclasses.fake_tensor.FakeTensor"): "takes two seconds to load",
    ("torch_compat/functions.py", "torch.utils._python_dispatch._disable_current_modes"): "differs between versions",
    ("testing/cases.py", "bothways"): "the public package imports the testing tools",
    ("testing/checking.py", "bothways"): "the public package imports the testing tools",
}

# Below every layer; they import nothing but each other.
SHARED = "errors hints config locks files torch_compat node_facts ops fake symbols source_text".split()

# What does not follow from the order: the testing tools and the public package may be used from the top only,
# and the testing tools stand on everything below the public functions.
EXCEPTIONS = {
    "commands": {*LAYERS, *SHARED, "testing", "bothways"},
    "api": {*LAYERS[1:], *SHARED, "testing", "bothways"},
    "testing": {*LAYERS[2:], *SHARED, "testing", "bothways"},
    "__main__": {*LAYERS, *SHARED, "testing", "bothways"},
    "__init__": {*LAYERS[1:], *SHARED, "testing"},
}

# Attributes of PyTorch's overloads, for which ``torch_compat`` has functions.
PRIVATE_OF_OVERLOADS = {"_schema", "_opname", "_overloadname", "_overloadpacket"}
# Private attributes that are asked for by their text, and whose they are.
PRIVATE_BY_TEXT = {
    "_fields": "Python's, of named tuples",
    "_is_protocol": "Python's, of protocols",
    "_orig_mod": "of a compiled module, as PyTorch calls it",
    "_backward_hooks": "of tensors; to try whether C sees it set",
}

MOST_LINES = 53  # of a function

FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch.partitioners",
    "torch.fx.experimental.proxy_tensor",
    "torch.compile",
)


@dataclass(frozen=True)
class File:
    """One source file of the package: its path below the package, and its syntax tree."""

    path: str
    tree: ast.Module

    @property
    def layer(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def is_drop_in(self) -> bool:
        """The drop-in replaces PyTorch's names, so it alone may speak of them."""
        return self.path == "api/install.py" or self.path.startswith("api/dropin")


@functools.cache
def read(path: Path) -> File:
    return File(name_of(path), tree_of(path))


@functools.cache
def nodes_of(file: File) -> list[ast.AST]:
    return nodes_in(file.tree)


def modules_imported(file: File) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) imported; ``from a import b`` gives ``a.b``, whether b is a module or not."""
    return imported_by(nodes_of(file), file)


def imported_by(nodes: Iterable[ast.AST], file: File) -> Iterator[tuple[int, str]]:
    folder = ["bothways", *file.path.split("/")[:-1]]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if ast.unparse(node.func) in ("__import__", "importlib.import_module"):
                yield node.lineno, str(node.args[0].value)


def names_used(file: File) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) of an attribute chain that starts at something imported, written in full."""
    meaning: dict[str, str] = {}
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds a to a; `import a.b as c` binds c to a.b
                root = alias.name.split(".")[0]
                meaning[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes_of(file):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id in meaning:
            yield node.lineno, ".".join([meaning[inner.id], *reversed(chain)])


def package_part(name: str) -> str | None:
    """Which layer or shared file an imported name of ours lies in; "bothways" for the public package."""
    parts = name.split(".")
    if parts[0] != "bothways":
        return None
    known = {*LAYERS, *SHARED, "testing"}
    return parts[1] if len(parts) > 1 and parts[1] in known else "bothways"


def allowed_parts(layer: str) -> set[str]:
    if layer in EXCEPTIONS:
        return EXCEPTIONS[layer]
    below = LAYERS[LAYERS.index(layer) :] if layer in LAYERS else []
    return {*below, *SHARED}


def upward_imports(file: File) -> list[str]:
    allowed = allowed_parts(file.layer)
    return [
        f"{file.path}:{line} imports {name}"
        for line, name in modules_imported(file)
        if (part := package_part(name)) is not None and part not in allowed
    ]


def forbidden_names(file: File) -> list[str]:
    if file.is_drop_in:
        return []
    return [
        f"{file.path}:{line} uses {name}"
        for line, name in [*modules_imported(file), *names_used(file)]
        if any(name == bad or name.startswith(bad + ".") for bad in FORBIDDEN)
    ]


def private_torch_names(file: File) -> list[str]:
    if file.is_drop_in or file.path.startswith("torch_compat/"):
        return []
    by_name = [
        (line, name)
        for line, name in [*modules_imported(file), *names_used(file)]
        if name.startswith("torch.") and any(_is_private(part) for part in name.split("."))
    ]
    of_overloads = [
        (node.lineno, node.attr)
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_OF_OVERLOADS
    ]
    return [f"{file.path}:{line} uses {name}" for line, name in [*by_name, *of_overloads, *names_as_text(file)]]


def names_as_text(file: File) -> Iterator[tuple[int, str]]:
    """Every (line, name) of a private attribute that is asked for by its text."""
    for node in nodes_of(file):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if _is_private(str(name)) and name not in PRIVATE_BY_TEXT:
                yield node.lineno, name


def _is_private(part: str) -> bool:
    return part.startswith("_") and not (part.startswith("__") and part.endswith("__"))


def room_of(path: str) -> str | None:
    """The room of its folder that a file lies in; None in folders without rooms."""
    folder, _, rest = path.partition("/")
    rest = rest.removesuffix(".py").removesuffix("/__init__") or rest
    found = [room for room in ROOMS.get(folder, ()) if rest == room or rest.startswith(room + "/")]
    return max(found, key=len) if found else None


@functools.cache
def import_statements(file: File) -> list[tuple[ast.AST, bool]]:
    """Those that are not for annotations alone, each with whether it is inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            ):
                continue
            within = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, within
            yield from walk(child, within)

    return list(walk(file.tree, False))


def imports_at(file: File, late: bool) -> Iterator[tuple[int, str]]:
    """Imports that are run with the module, or those inside functions; never those for annotations alone."""
    return imported_by([node for node, within in import_statements(file) if within == late], file)


def path_of(name: str) -> str | None:
    """The file of the package that an imported name is, or lies in."""
    parts = name.split(".")[1:] if name.split(".")[0] == "bothways" else None
    while parts:
        for path in ("/".join(parts) + ".py", "/".join([*parts, "__init__.py"])):
            if (PACKAGE / path).exists():
                return path
        parts = parts[:-1]
    return None


def imports_of_higher_rooms(file: File) -> list[str]:
    folder, own = file.path.split("/")[0], room_of(file.path)
    if own is None:
        return [f"{file.path} lies in no room"] if folder in ROOMS else []
    rooms, problems = ROOMS[folder], []
    late = [(line, name) for line, name in imports_at(file, late=True) if (file.path, name) not in LATE]
    for line, name in [*imports_at(file, late=False), *late]:
        path = path_of(name)
        if path is not None and path.startswith(folder + "/"):
            room = room_of(path)
            if room is not None and rooms.index(room) > rooms.index(own):
                problems.append(f"{file.path}:{line} imports {name}")
    return problems


def circles(links: dict[str, set[str]]) -> list[str]:
    """Files that import each other in a circle, each named once."""
    state: dict[str, int] = {}
    found: list[str] = []

    def visit(path: str) -> None:
        state[path] = 1
        for other in sorted(links.get(path, ())):
            if state.get(other) == 1:
                found.append(f"{path} imports {other}, which leads back to it")
            elif other not in state:
                visit(other)
        state[path] = 2

    for path in sorted(links):
        if path not in state:
            visit(path)
    return found


def test_every_folder_and_file_has_a_place():
    places = {*LAYERS, *SHARED, *EXCEPTIONS}
    strays = [name_of(path) for path in FILES if read(path).layer not in places]
    assert strays == []


def test_folders_import_only_downwards():
    assert [line for path in FILES for line in upward_imports(read(path))] == []


def test_rooms_import_only_from_those_below():
    assert [line for path in FILES for line in imports_of_higher_rooms(read(path))] == []


def test_no_files_import_each_other():
    links: dict[str, set[str]] = {}
    for path in FILES:
        file = read(path)
        found = {other for _, name in imports_at(file, late=False) if (other := path_of(name)) is not None}
        # A package's own file is loaded before those in it, and only gathers them.
        links[file.path] = {other for other in found if other != file.path and not other.endswith("__init__.py")}
    assert circles(links) == []


def test_imports_that_wait_are_few_and_listed():
    late = {(read(path).path, name) for path in FILES for _, name in imports_at(read(path), late=True)}
    assert late == set(LATE)
    assert sum(1 for path in FILES for _ in imports_at(read(path), late=True)) <= 15


def test_no_class_is_there_twice():
    """The drop-in's classes have PyTorch's names; those are not ours."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        file = read(path)
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef) and not file.is_drop_in:
                places.setdefault(node.name, []).append(file.path)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_what_is_linked_is_what_is_listed():
    """``linked`` names for mypy what ``features`` puts in."""
    tree = read(PACKAGE / "capture/values/core/linked.py").tree
    block = next(node for node in tree.body if isinstance(node, ast.If))
    listed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    listed |= {target.id for node in block.body if isinstance(node, ast.Assign) for target in node.targets}
    features = read(PACKAGE / "capture/features.py").tree
    calls = (node for node in ast.walk(features) if isinstance(node, ast.Call))
    call = next(node for node in calls if ast.unparse(node.func) == "linked.link")
    names = {keyword.arg for keyword in call.keywords}
    assert names == {name for name in listed if not name.startswith("_")}
    texts = [text_of(path) for path in FILES if "capture" in path.parts]
    assert [name for name in names if not any(f"linked.{name}" in text for text in texts)] == []


def test_dialects_know_nothing_of_each_other():
    """What C and CUDA C++ share is in a folder of its own."""
    inside = [read(path) for path in FILES if "lower/dialects/" in path.as_posix()]
    own = {file.path: file.path.split("/")[2] for file in inside if file.path.count("/") > 2}
    assert [
        f"{file.path}:{line} imports {name}"
        for file in inside
        for line, name in modules_imported(file)
        if name.startswith("bothways.lower.dialects.") and name.split(".")[3] not in (own.get(file.path), "c_family")
    ] == []


def test_nothing_stands_on_the_compiler_it_replaces():
    assert [line for path in FILES for line in forbidden_names(read(path))] == []


def test_private_torch_names_are_reached_in_one_file():
    assert sorted({line for path in FILES for line in private_torch_names(read(path))}) == []


def test_files_are_short_enough_to_read_and_say_what_they_are():
    problems = []
    for path in FILES:
        name, lines = name_of(path), len(text_of(path).splitlines())
        problems += [f"{name} has {lines} lines"] * (lines > 500)
        problems += [f"{name} has no docstring"] * (lines > 0 and not ast.get_docstring(read(path).tree))
    assert problems == []


def test_functions_are_short_enough_to_be_seen_at_once():
    problems = []
    for path in FILES:
        functions = [node for node in nodes_of(read(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        lengths = [(node.name, node.end_lineno - node.lineno + 1) for node in functions]
        problems += [f"{name_of(path)} {name} has {lines} lines" for name, lines in lengths if lines > MOST_LINES]
    assert problems == []


# The rules themselves --------------------------------------------------------------------------------------


def source(path: str, text: str) -> File:
    return File(path, ast.parse(text))


@pytest.mark.parametrize(
    "path, text, broken",
    [
        ("capture/a.py", "from bothways.runtime import dispatch", False),
        ("capture/a.py", "from bothways.capture.values import base", False),
        ("capture/a.py", "from ..runtime import dispatch", False),
        ("capture/values/a.py", "from ...errors import Break", False),
        ("capture/values/a.py", "from . import base", False),
        ("capture/a.py", "from bothways import errors", False),
        ("capture/a.py", "from bothways import config", False),
        ("capture/a.py", "import torch, os", False),
        ("capture/a.py", "from bothways.report import text", True),
        ("capture/a.py", "from ..api import compile", True),
        ("capture/a.py", "import bothways", True),
        ("capture/a.py", "from bothways import compile", True),
        ("capture/a.py", "def f():\n    import bothways.api.compile", True),
        ("runtime/a.py", "from bothways.capture import sources", True),
        ("runtime/a.py", "from bothways.backends import lookup_backend", True),
        ("errors.py", "from bothways.runtime import dispatch", True),
        ("config.py", "from bothways.errors import BothwaysError", False),
        ("lower/a.py", "from bothways.testing import same", True),
        ("api/a.py", "from bothways.testing import same", False),
        ("testing/a.py", "import bothways\nfrom bothways.capture import sources", False),
        ("testing/a.py", "from bothways.api.compile import compile", True),
        ("__init__.py", "from bothways.api.compile import compile", False),
    ],
)
def test_the_rule_on_layers(path, text, broken):
    assert bool(upward_imports(source(path, text))) == broken


@pytest.mark.parametrize(
    "path, text, broken",
    [
        ("lower/ir/a.py", "from bothways.lower.ir import prims", False),
        ("lower/host/a.py", "from bothways.lower.schedule.tree import Kernel", False),
        ("lower/dialects/c/a.py", "from bothways.lower.host.dialect import Dialect", False),
        ("lower/ir/a.py", "from bothways.lower.schedule.tree import Kernel", True),
        ("lower/schedule/a.py", "def f():\n    from bothways.lower.dialects.c import emit", True),
        ("lower/host/a.py", "from bothways.lower import compile_graph", True),
        ("lower/__init__.py", "from bothways.lower.host.program import compile_graph", False),
        ("grad/nodes/a.py", "from bothways.lower.host.aten_calls import function_of", False),
    ],
)
def test_the_rule_on_folders_inside_a_layer(path, text, broken):
    assert bool(imports_of_higher_rooms(source(path, text))) == broken


@pytest.mark.parametrize(
    "text, broken",
    [
        ("import torch._dynamo", True),
        ("from torch import _dynamo", True),
        ("import torch._inductor.ir as ir", True),
        ("from torch._functorch.aot_autograd import aot_function", True),
        ("from torch.fx.experimental.proxy_tensor import make_fx", True),
        ("from torch.fx.experimental import proxy_tensor", True),
        ("import importlib\nimportlib.import_module('torch._dynamo.utils')", True),
        ("import torch\ntorch._dynamo.reset()", True),
        ("import torch\ntorch.compile(f)", True),
        ("import torch as t\nt.compile(f)", True),
        ("from torch import compile", True),
        ("import torch\ntorch._C._dynamo.compiled_autograd", False),
        ("import torch\ntorch.compiler.is_compiling()", False),
        ("from torch.fx.experimental.symbolic_shapes import ShapeEnv", False),
        ("import re\nre.compile('x')", False),
    ],
)
def test_the_rule_on_the_compiler_it_replaces(text, broken):
    assert bool(forbidden_names(source("capture/a.py", text))) == broken
    assert forbidden_names(source("api/install.py", text)) == []
    assert forbidden_names(source("api/dropin_table.py", text)) == []


@pytest.mark.parametrize(
    "text, broken",
    [
        ("import torch\ntorch._C._get_tracing_state()", True),
        ("from torch._subclasses import FakeTensorMode", True),
        ("import torch._C", True),
        ("from torch.fx import _pytree", True),
        ("from torch import nn\nnn.Module._call_impl", True),
        ("from torch.nn import Module as M\nM._call_impl", True),
        ("import torch as t\nt._C", True),
        ("import torch\ntorch.Tensor.__add__", False),
        ("import torch\ntorch.nn.functional.relu", False),
        ("from bothways import torch_compat\ntorch_compat._x", False),
        ("overload._schema.arguments", True),
        ("getattr(node.target, '_schema', None)", True),
        ("getattr(kind, '_fields', ())", False),
        ("getattr(self, name)", False),
        ("x._version", False),
    ],
)
def test_the_rule_on_private_names(text, broken):
    assert bool(private_torch_names(source("capture/a.py", text))) == broken
    assert private_torch_names(source("torch_compat/names.py", text)) == []
