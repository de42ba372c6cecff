"""Definitions of Python and PyTorch that were replaced, compared with what they were when they were imported.

Captured code may use replaced definitions like any others. bothways calls some of them itself, though, and while one of
those is replaced it is unknown what a capture would give.
"""

from __future__ import annotations

import builtins
import dis
import functools
import os
import sys
import types
from collections.abc import Iterator
from itertools import compress
from operator import is_not
from typing import Any

import torch

from bothways import errors, torch_compat
from bothways.capture.guards import policy
from bothways.runtime.stamps import CHANGES_BY_ITSELF

_STANDARD, _TORCH = os.path.dirname(os.__file__), os.path.dirname(torch.__file__)
_PACKAGE = os.path.dirname(errors.__file__)

# What the namespaces that operations read hold when nothing is replaced.
AS_IMPORTED: dict[int, dict[str, Any]] = {
    id(vars(module)): dict(vars(module))
    for module in (torch, torch.nn.functional, torch.functional, torch_compat.TENSOR_MODULE, torch_compat.NN_FUNCTIONS)
}


def is_as_imported(names: dict[str, Any], name: str) -> bool:
    """Whether a name of a library's module stands for what it stood for; modules may have been loaded since."""
    imported, value = AS_IMPORTED.get(id(names)), names.get(name)
    if imported is None or (name not in imported and isinstance(value, types.ModuleType)):
        return not is_replaced(value)
    return value is imported.get(name)


def is_ours(names: dict[str, Any]) -> bool:
    """Whether these are the globals of a module of bothways, which replaces nothing of its own."""
    return policy.name_of(names).partition(".")[0] == "bothways"


def is_replaced(function: Any) -> bool:
    """Whether something that a library's name stands for is a function that was put there."""
    return isinstance(function, types.FunctionType) and not _is_library_file(function.__code__.co_filename)


@functools.cache
def _is_library_file(filename: str) -> bool:
    if filename.startswith((_TORCH, _PACKAGE, "<")):
        return True
    return filename.startswith(_STANDARD) and "site-packages" not in filename and "dist-packages" not in filename


# What ``torch.Tensor`` has of its own; anything else was put there later.
_OF_TENSORS: dict[str, Any] = {
    name: value
    for name, value in vars(torch.Tensor).items()
    if not isinstance(value, types.FunctionType) or policy.is_library_module(policy.name_of(value.__globals__))
}

# Builtin functions as Python has them, save those that people put others in the place of while nothing else changes.
_BUILTINS: dict[str, Any] = {
    name: value
    for name, value in vars(builtins).items()
    if name not in {"print", "input", "open", "__import__", "breakpoint", "_", "exit", "quit", "help"}
}

# What Python and PyTorch ask tensors by themselves.
_ASKED = frozenset("__torch_function__ __torch_dispatch__ __class__ __dict__ __getattribute__ __hash__ __new__".split())


def patched_of_tensors() -> frozenset[str]:
    """Attributes of tensors that are not PyTorch's."""
    now = vars(torch.Tensor)
    names = {*_OF_TENSORS, *now}.difference(CHANGES_BY_ITSELF)
    return frozenset(name for name in names if now.get(name) is not _OF_TENSORS.get(name))


def replaced_below() -> str | None:
    """Something that capture and backends call themselves and that is not what it was; None as a rule."""
    now = vars(builtins)
    for name in _BUILTINS:
        if name not in now or now[name] is not _BUILTINS[name]:
            return f"builtins.{name}"
    asked = [name for name in patched_of_tensors() if name in _ASKED or is_read_here(name, None)]
    if asked:
        return f"Tensor.{min(asked)}"
    for module in (torch, torch.nn.functional, torch.functional, torch_compat.NN_FUNCTIONS):
        names, imported = vars(module), AS_IMPORTED[id(vars(module))]
        # Each capture looks at thousands of names, so C does.
        changed = compress(imported, map(is_not, map(names.get, imported), imported.values()))
        asked = [name for name in changed if not _is_of_bothways(names.get(name)) and is_read_here(name, module)]
        if asked:
            return f"{module.__name__}.{min(asked)}"
    return None


def _is_of_bothways(function: Any) -> bool:
    """Whether it is the drop-in that has replaced something."""
    return (getattr(function, "__module__", None) or "").startswith("bothways.")


# What bothways reads ------------------------------------------------------------------------------------------------

# What neither captures nor compiles: it looks on.
_BESIDE = ("bothways.testing", "bothways.commands", "bothways.report", "bothways.api.doctor")

Reader = tuple[types.CodeType, dict[str, Any]]  # a code of bothways, and its globals


def is_read_here(name: str, module: types.ModuleType | None) -> bool:
    """Whether a function of bothways reads a name off a module, or off a tensor where none is given."""
    return _is_read(name, module, _modules_of_bothways(len(sys.modules)))


@functools.lru_cache(maxsize=1)
def _modules_of_bothways(_loaded: int) -> int:
    """How many are loaded, counted again when there are others: whoever loads ``torch._dynamo`` replaces a function."""
    return sum(name.partition(".")[0] == "bothways" for name in list(sys.modules))


@functools.lru_cache(maxsize=4096)
def _is_read(name: str, module: types.ModuleType | None, loaded: int) -> bool:
    return any(name in reader[0].co_names and reads(reader, name, module) for reader in _readers(loaded).values())


@functools.lru_cache(maxsize=1)
def _readers(_loaded: int) -> dict[int, Reader]:
    """The codes of bothways, each once; those of modules that are loaded later come to them."""
    readers: dict[int, Reader] = {}
    seen: dict[int, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "bothways" and not name.startswith(_BESIDE):
            for function in _functions_of(module, seen):
                readers.update((id(code), (code, function.__globals__)) for code in _codes_in(function.__code__))
    return readers


# What modules and tables are full of that holds no function.
_HOLDS_NONE = frozenset({str, int, float, bool, bytes, type(None), torch.dtype, types.CodeType})


def _functions_of(module: types.ModuleType, seen: dict[int, Any]) -> Iterator[types.FunctionType]:
    """The functions of a module: those with a name, methods, what decorators hold, and rows of tables. What has been
    seen, by way of other modules, is left out."""
    pending = list(vars(module).values())
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind in _HOLDS_NONE or id(value) in seen or isinstance(value, types.ModuleType):
            continue
        seen[id(value)] = value  # kept: what is made when it is asked for would leave its number to another one
        if kind is types.FunctionType:
            if (value.__module__ or "").startswith("bothways"):
                yield value
        elif isinstance(value, type):
            pending += vars(value).values() if value.__module__.startswith("bothways") else ()
        elif isinstance(value, (dict, list, tuple)):
            pending += value.values() if isinstance(value, dict) else value
        else:
            pending += (getattr(value, name, None) for name in ("__func__", "__wrapped__", "fget"))


def reads(reader: Reader, name: str, module: types.ModuleType | None) -> bool:
    """Whether a code reads an attribute of that name off the module; without one, off what may be a tensor.

    What stands before a dot says whose the attribute is, unless the code keeps the module under another name: a method
    called ``compile`` or ``load`` is none of ``torch``, which whole libraries (Lightning) and many scripts replace.
    """
    code, names = reader
    owner: Any = None  # the module that the last instruction has read, where that is plain to see
    is_kept = module is None  # whether what the code does not tell may be the one that is asked for
    is_read = False  # off something that the code does not tell
    for step in dis.get_instructions(code):
        if step.opname in _OF_OBJECTS:
            known = owner if isinstance(owner, types.ModuleType) else None
            if step.argval == name and known is module is not None:
                return True
            is_read |= step.argval == name and known is None
            owner = None if known is None else vars(known).get(step.argval)
        elif step.opname != "PUSH_NULL":
            is_kept |= owner is module
            owner = _loaded_by(step, names)
    return is_read and is_kept


def _loaded_by(step: dis.Instruction, names: dict[str, Any]) -> Any:
    """What an instruction puts on the stack, where that has a name of its own."""
    if step.opname == "IMPORT_NAME":
        return sys.modules.get(step.argval)
    return names.get(step.argval) if step.opname in _OF_GLOBALS else None


_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_OF_OBJECTS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code, and those of the functions it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


def mentioned(code: types.CodeType) -> Iterator[str]:
    """The names that a code reads, with those of the functions it defines."""
    for inside in _codes_in(code):
        yield from inside.co_names
