"""What a call can reach and change, remembered so that the call can be made again from the same start.

A ``World`` walks from a function and its arguments through closures, globals, attributes, containers, tensors and
their gradients. ``rewind`` puts every object back in place, so that whatever refers to it sees it as it was;
``picture`` is all of it as plain containers, to be compared. Modules, classes and builtin objects are left alone.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.runtime.dispatcher import is_compiled

# Code that is followed by what it is given, not through its globals: it belongs to no program of the user's.
LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "bothways"})
ATOMS = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.CodeType, torch.dtype,
         torch.device, torch.Size, torch.layout, torch.memory_format, range, slice)  # fmt: skip


class World:
    """Everything that can be reached from some named objects, as it was when this was made."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._undo: list[Callable[[], None]] = [*_random_states()]
        self._seen: dict[int, Any] = {}  # held, so that no identity is given away
        self._storages: set[int] = set()
        self._functions: list[types.FunctionType] = []
        self._cells: dict[str, types.CellType] = {}
        self._globals: dict[str, tuple[dict[str, Any], str]] = {}
        self.roots = dict(roots)
        waiting = list(self.roots.values())
        while waiting:
            waiting += self._met(waiting.pop())

    def rewind(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def picture(self) -> dict[str, Any]:
        """All of it as it is now, by name."""
        seen: dict[int, str] = {}
        cells = {name: cell.cell_contents for name, cell in self._cells.items() if _is_full(cell)}
        named = {name: home[key] for name, (home, key) in self._globals.items() if key in home}
        return {name: picture(value, name, seen) for name, value in {**self.roots, **cells, **named}.items()}

    def _met(self, value: Any) -> list[Any]:
        """Remember an object; gives those that it leads to."""
        if isinstance(value, ATOMS) or id(value) in self._seen or type(value).__module__.startswith("bothways."):
            return []
        self._seen[id(value)] = value
        for kind, remember in KINDS:
            if isinstance(value, kind):
                return remember(self, value)
        return self._object(value)

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        grad, needs_grad, before = tensor.grad if tensor.is_leaf else None, tensor.requires_grad, tensor.grad_fn
        alias = tensor.data
        self._storage(tensor)

        def undo() -> None:
            if before is None and tensor.grad_fn is not None:
                with contextlib.suppress(RuntimeError):  # a view of what was changed, which goes with it
                    tensor.detach_()
            if _place(tensor) != _place(alias):
                tensor.data = alias
            if tensor.is_leaf:
                tensor.requires_grad_(needs_grad) if tensor.requires_grad != needs_grad else None
                tensor.grad = grad

        self._undo.append(undo)
        return [grad, *self._attributes(tensor)]

    def _storage(self, tensor: torch.Tensor) -> None:
        if tensor.is_meta or not torch_compat.is_plain_dense(tensor):
            return
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages or not storage.nbytes():
            return
        self._storages.add(storage.data_ptr())
        content = storage.clone()

        def undo() -> None:
            if storage.nbytes() == content.nbytes():
                storage.copy_(content)

        self._undo.append(undo)

    def _list(self, value: Any) -> list[Any]:
        content = list(value)

        def undo() -> None:
            value.clear()
            value.extend(content)

        self._undo.append(undo)
        return content

    def _dict(self, value: Any) -> list[Any]:
        content = dict(value)

        def undo() -> None:
            value.clear()
            value.update(content)

        self._undo.append(undo)
        return [*content, *content.values()]

    def _set(self, value: Any) -> list[Any]:
        content = set(value)

        def undo() -> None:
            value.clear()
            value.update(content)

        self._undo.append(undo)
        return list(content)

    def _function(self, function: types.FunctionType) -> list[Any]:
        if is_compiled(function):
            return [function.__wrapped__]  # type: ignore[attr-defined]
        reached: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._cells[f"{function.__name__}'s {name}"] = cell
                reached += self._cell(cell)
        module = str(function.__globals__.get("__name__"))
        if module.partition(".")[0] not in LIBRARIES:
            for name in _names(function.__code__):
                if name in function.__globals__ and f"{module}.{name}" not in self._globals:
                    reached.append(self._global(function.__globals__, name, f"{module}.{name}"))
        return reached

    def _cell(self, cell: types.CellType) -> list[Any]:
        if not _is_full(cell):
            return []
        content = cell.cell_contents

        def undo() -> None:
            cell.cell_contents = content

        self._undo.append(undo)
        return [content]

    def _global(self, home: dict[str, Any], key: str, name: str) -> Any:
        value = home[key]
        self._globals[name] = home, key

        def undo() -> None:
            home[key] = value

        if not isinstance(value, (types.ModuleType, type, types.FunctionType)):
            self._undo.append(undo)
        return value

    def _object(self, value: Any) -> list[Any]:
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self._undo.append(functools.partial(_put_state, value, state))
            return []
        if type(value).__module__.partition(".")[0] in LIBRARIES - {"torch"} and not hasattr(value, "__dict__"):
            return []
        return self._attributes(value)

    def _attributes(self, value: Any) -> list[Any]:
        reached: list[Any] = []
        for name in _slots(type(value)):
            with contextlib.suppress(AttributeError):
                reached.append(content := getattr(value, name))
                self._undo.append(functools.partial(_set_slot, value, name, content))
        own = getattr(value, "__dict__", None)
        return [*reached, own] if isinstance(own, dict) else reached


def _parts_of_partial(world: World, value: Any) -> list[Any]:
    return [value.func, *value.args, *value.keywords.values()]


# Class -> how an object of it is remembered, the first that fits.
KINDS: list[tuple[Any, Callable[[World, Any], list[Any]]]] = [
    (torch.Tensor, World._tensor),
    ((list, collections.deque), World._list),
    (dict, World._dict),
    (set, World._set),
    ((tuple, frozenset), lambda world, value: list(value)),
    (types.FunctionType, World._function),
    (types.MethodType, lambda world, value: [value.__func__, value.__self__]),
    (functools.partial, _parts_of_partial),
]


def picture(value: Any, path: str = "", seen: dict[int, str] | None = None) -> Any:
    """A value as plain containers and detached tensors; what was met before is named by where."""
    seen = {} if seen is None else seen
    if isinstance(value, ATOMS):
        return value
    if id(value) in seen:
        return f"the same as {seen[id(value)]}"
    seen[id(value)] = path
    if isinstance(value, torch.Tensor):
        return _tensor_picture(value, path, seen)
    if isinstance(value, (list, tuple, collections.deque)):
        return [picture(item, f"{path}[{index}]", seen) for index, item in enumerate(value)]
    if isinstance(value, dict):
        # Keys that are objects are named by their order, which is part of what a dict is.
        names = [key if isinstance(key, (str, int, float, tuple)) else f"key {at}" for at, key in enumerate(value)]
        items = zip(names, value.values(), strict=True)
        return {name: picture(item, f"{path}[{name!r:.20}]", seen) for name, item in items}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value)) if all(isinstance(item, ATOMS) for item in value) else len(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return f"function {getattr(value, '__qualname__', '')}"
    state = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    state |= getattr(value, "__dict__", {})
    return {"class": type(value).__qualname__} | {
        name: picture(item, f"{path}.{name}", seen) for name, item in state.items()
    }


def _tensor_picture(tensor: torch.Tensor, path: str, seen: dict[int, str]) -> Any:
    with torch.no_grad():
        content = tensor.detach() if tensor.is_meta else tensor.detach().clone()
    grad = tensor.grad if tensor.is_leaf else None
    facts = {"value": content, "requires_grad": tensor.requires_grad}
    if grad is not None:
        facts["grad"] = picture(grad, f"{path}.grad", seen)
    return facts


@dataclass(frozen=True)
class _RandomState:
    get: Callable[[], Any]
    put: Callable[[Any], Any]


def _random_states() -> Iterator[Callable[[], None]]:
    sources = [_RandomState(torch.get_rng_state, torch.set_rng_state), _RandomState(random.getstate, random.setstate)]
    if torch.cuda.is_available():
        sources.append(_RandomState(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        sources.append(_RandomState(numpy.random.get_state, numpy.random.set_state))
    for source in sources:
        yield functools.partial(source.put, source.get())


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (tensor.layout,)
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.data_ptr()


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code and what is defined in it looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _slots(kind: type) -> list[str]:
    if issubclass(kind, torch.Tensor):
        return []
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if not name.startswith("__")]


def _put_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)


def _set_slot(value: Any, name: str, content: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError):  # what is set once stays as it is
        object.__setattr__(value, name, content)
