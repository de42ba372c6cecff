"""The layers stay honest: what imports what, which parts of PyTorch are off limits, where private names live.

The package is read with ``ast`` and never imported, so imports inside functions or behind ``TYPE_CHECKING``
count like any other. Each rule is a function from one file to its violations, and is itself tested below.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bothways"

# From top to bottom; a layer imports from itself and from those after it.
LAYERS = ["api", "report", "driver", "pipeline", "capture", "backends", "grad", "lower", "record", "runtime"]

# Below every layer; they import nothing but each other.
SHARED = ["errors", "hints", "config", "locks", "torch_compat", "fake", "symbols", "source_text"]

# What does not follow from the order: the testing tools and the public package may be used from the top only,
# and the testing tools stand on everything below the public functions.
EXCEPTIONS = {
    "api": {*LAYERS, *SHARED, "testing", "bothways"},
    "testing": {*LAYERS[1:], *SHARED, "testing", "bothways"},
    "__main__": {*LAYERS, *SHARED, "testing", "bothways"},
    "__init__": {*LAYERS, *SHARED, "testing"},
}

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


def read(path: Path) -> File:
    return File(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(), str(path)))


def modules_imported(file: File) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) imported; ``from a import b`` gives ``a.b``, whether b is a module or not."""
    folder = ["bothways", *file.path.split("/")[:-1]]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "__import__",
            "importlib.import_module",
        ):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def names_used(file: File) -> Iterator[tuple[int, str]]:
    """Every (line, dotted name) of an attribute chain that starts at something imported, written in full."""
    meaning: dict[str, str] = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds a to a; `import a.b as c` binds c to a.b
                root = alias.name.split(".")[0]
                meaning[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(file.tree):
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
    return [
        f"{file.path}:{line} uses {name}"
        for line, name in [*modules_imported(file), *names_used(file)]
        if name.startswith("torch.") and any(_is_private(part) for part in name.split("."))
    ]


def _is_private(part: str) -> bool:
    return part.startswith("_") and not (part.startswith("__") and part.endswith("__"))


FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def test_every_folder_and_file_has_a_place():
    places = {*LAYERS, *SHARED, *EXCEPTIONS}
    strays = [path.relative_to(PACKAGE).as_posix() for path in FILES if read(path).layer not in places]
    assert strays == []


def test_folders_import_only_downwards():
    assert [line for path in FILES for line in upward_imports(read(path))] == []


def test_nothing_stands_on_the_compiler_it_replaces():
    assert [line for path in FILES for line in forbidden_names(read(path))] == []


def test_private_torch_names_are_reached_in_one_file():
    assert sorted({line for path in FILES for line in private_torch_names(read(path))}) == []


def test_files_are_short_enough_to_read_and_say_what_they_are():
    problems = []
    for path in FILES:
        name, lines = path.relative_to(PACKAGE).as_posix(), len(path.read_text().splitlines())
        problems += [f"{name} has {lines} lines"] * (lines > 500)
        problems += [f"{name} has no docstring"] * (lines > 0 and not ast.get_docstring(read(path).tree))
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
        ("x._version", False),
    ],
)
def test_the_rule_on_private_names(text, broken):
    assert bool(private_torch_names(source("capture/a.py", text))) == broken
    assert private_torch_names(source("torch_compat/names.py", text)) == []
