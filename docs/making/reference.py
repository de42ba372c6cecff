"""The API reference, docs/api.md, from the docstrings of what is public: functions, classes, fields, errors."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import bothways
from bothways import errors
from bothways.api.doctor import Diagnosis, Finding
from bothways.backends import aot
from bothways.cache.portable import Shipment
from bothways.config import Config, config
from bothways.record.compilation import Compilation
from bothways.record.graphs import GraphText
from bothways.record.outcomes import Generated, KernelFacts, Outcome, Piece, SavedValue
from bothways.report import Explanation
from bothways.report.profile import Measured, Profile
from bothways.runtime.program import Check
from bothways.testing.bisecting import Culprit
from bothways.testing.checking import Agreement

HEAD = """\
# API reference

Written from the docstrings by `make docs`; the examples run as tests. `torch` and `bothways` are imported in each.
"""


@dataclass(frozen=True)
class Section:
    """A heading, and what stands below it by its name."""

    title: str
    names: dict[str, Any]


def sections() -> list[Section]:
    """What is public, in the order people meet it."""
    own = [
        "compile", "explain", "report", "profile", "history", "memory", "reset", "set_stance", "doctor"
    ]  # fmt: skip
    said = ["disable", "allow_in_graph", "assume_constant_result", "graph_break", "is_compiling"]
    sizes, dropin, traced = ["mark_dynamic", "mark_static"], ["install", "uninstall"], ["trace", "trace_wrapped"]

    def of(names: list[str]) -> dict[str, Any]:
        return {f"bothways.{name}": getattr(bothways, name) for name in names}

    return [
        Section("Compiling, and reading what was compiled", of(own)),
        Section("Saying something about a function", of(said)),
        Section("Sizes that change", of(sizes)),
        Section("Backends", {**of(["list_backends", "register_backend"]), "bothways.backends.aot": aot}),
        Section("Programs written for torch.compile", of(dropin)),
        Section("Tracing", of(traced)),
        *(Section(f"bothways.{name}", _inside(name)) for name in MODULES),
        Section("Testing", _inside("testing")),
    ]


def _inside(module: str) -> dict[str, Any]:
    return {f"bothways.{module}.{name}": thing for name, thing in _public(getattr(bothways, module))}


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(module, name)) for name in module.__all__)


# What the package has besides functions and has no section of its own.
MODULES = [
    name
    for name in bothways.__all__
    if isinstance(getattr(bothways, name), ModuleType) and name not in ("errors", "testing")
]


# What the functions above give.
RECORDS = (
    Explanation, Profile, Measured, Compilation, GraphText, Check, Outcome, Piece, Generated, KernelFacts, SavedValue,
    errors.Break, errors.Position,
    Agreement, Culprit, Diagnosis, Finding, Shipment,
)  # fmt: skip


def text() -> str:
    lines = [HEAD]
    for section in sections():
        lines.append(f"## {section.title}\n")
        for name, thing in section.names.items():
            lines += _entry(name, thing)
    lines += ["## Configuration\n", _markdown(str(Config.__doc__)), "", *_fields_of_config(), "", *_methods_of_config()]
    lines += ["\n## What comes back\n"]
    for record in RECORDS:
        lines += _record(record)
    lines += ["## Errors and warnings\n", "All are in `bothways.errors`.\n", *_errors()]
    return "\n".join(lines).rstrip() + "\n"


def public() -> dict[str, Any]:
    """Every documented function and class by name."""
    return {name: thing for section in sections() for name, thing in section.names.items()}


def signature(thing: Any) -> inspect.Signature:
    """The signature people call: that of a class without ``self``."""
    return inspect.signature(thing)


def _entry(name: str, thing: Any) -> list[str]:
    shown = f"{name}{_without_types(signature(thing))}"
    return [f"### `{name}`\n", "```python", _wrapped(shown), "```\n", _markdown(inspect.getdoc(thing) or ""), ""]


def _without_types(signed: inspect.Signature) -> str:
    """Parameters and their defaults, without types: the words below say what they are."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signed.parameters.values()]
    return str(signed.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _wrapped(call: str) -> str:
    if len(call) <= 100:
        return call
    name, _, inside = call.partition("(")
    return f"{name}(\n" + textwrap.fill(inside[:-1], 96, initial_indent="    ", subsequent_indent="    ") + "\n)"


def _markdown(doc: str) -> str:
    """A docstring as Markdown: its examples become blocks of code."""
    parts = re.split(r"((?:^>>> .*\n?(?:^(?!\n).+\n?)*)+)", _plain(inspect.cleandoc(doc)), flags=re.MULTILINE)
    return "\n\n".join(
        f"```python\n{part.rstrip()}\n```" if part.startswith(">>>") else part.strip() for part in parts if part.strip()
    )


def _plain(doc: str) -> str:
    """A docstring's quotes as those of Markdown."""
    return doc.replace("``", "`")


def _line(doc: str | None) -> str:
    return _plain(" ".join((doc or "").split()))


def _fields_of_config() -> Iterator[str]:
    yield from ("| field | default | |", "| --- | --- | --- |")
    texts = dict(_attribute_docs(Config))
    for name in config.as_dict():
        field = Config.__dataclass_fields__[name]
        default = "the environment's" if callable(field.default_factory) else f"`{field.default!r}`"
        yield f"| `{name}` | {default} | {_line(texts[name])} |"


def _methods_of_config() -> Iterator[str]:
    for name in ("patch", "reset", "as_dict", "wants_log"):
        yield f"- `config.{name}()`: {_line(inspect.getdoc(getattr(Config, name)))}"


def _attribute_docs(kind: type) -> Iterator[tuple[str, str]]:
    """The texts below the fields of a class."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, str(below.value.value)


def _record(kind: type) -> list[str]:
    lines = [f"### `{kind.__name__}`\n", _markdown(kind.__doc__ or ""), ""]
    fields = [name for name in getattr(kind, "__dataclass_fields__", {}) if not name.startswith("_")]
    lines += [f"Fields: {', '.join(f'`{name}`' for name in fields)}.\n"] if fields else []
    for name, value in members(kind).items():
        called = "" if isinstance(value, property) else "()"
        lines.append(f"- `{name}{called}`: {_line(inspect.getdoc(value))}")
    return [*lines, ""]


def members(kind: type) -> dict[str, Any]:
    """The properties and methods people use of a record."""
    kept = {"graphs_of"}  # the other methods are for whoever fills the record
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (isinstance(value, property) or name in kept)
    }


def _errors() -> Iterator[str]:
    kinds = [thing for name in errors.__all__ if isinstance(thing := getattr(errors, name), type)]
    for kind in kinds:
        if issubclass(kind, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            yield f"- `{kind.__name__}` ({bases}): {_line(kind.__doc__)}"
