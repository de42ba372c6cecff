"""What a function of the user's can read or change, for code that runs in the middle of a graph.

The effects of captured code come after the graph, and what captured code reads is read before it. So a function that
the graph calls (the pack hook of saved tensors) must keep to objects of its own. ``keeps_apart`` follows everything
the function leads to; it is asked when the function is captured, and by a guard at every call.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bothways.capture.guards import policy

LIMIT = 20_000  # objects that are followed
CONTAINERS = (list, dict, set, collections.deque)
# Dictionaries nn.Module keeps its members in: they are changed by way of the module.
MODULE_FIELDS = frozenset(vars(torch.nn.Module()))
# Names of what changes an object without naming the attribute.
REFLECTION = frozenset({"setattr", "delattr", "__dict__", "vars", "globals", "__setattr__", "__delattr__"})
MUTATORS = frozenset(
    name
    for kind in CONTAINERS
    for name in dir(kind)
    if not name.startswith("__") and name not in ("copy", "count", "index", "get", "items", "keys", "values", "maxlen")
)


# Methods that Python calls without their being named.
IMPLICIT = frozenset(
    "__call__ __getattr__ __getattribute__ __setattr__ __delattr__ __get__ __set__ __delete__ __getitem__ __setitem__ "
    "__delitem__ __iter__ __next__ __len__ __bool__ __contains__ __enter__ __exit__ __eq__ __hash__ __lt__ __add__ "
    "__iadd__ __radd__ __mul__ __imul__ __rmul__ __sub__ __isub__ __rsub__ __ior__ __or__ __index__ __torch_function__ "
    "__str__ __repr__ __format__ __del__".split()
)


@dataclass(frozen=True)
class CodeUses:
    """What a code object and those inside it do, by the names it uses."""

    names: frozenset[str]  # of globals and attributes
    attributes: frozenset[str]  # it stores or deletes
    globals: frozenset[str]  # it stores or deletes
    cells: frozenset[str]  # closure variables it stores or deletes
    items: bool  # whether it stores or deletes items

    @property
    def changes_containers(self) -> bool:
        return self.items or bool(self.names & MUTATORS)


# Opcode -> the kind of thing it stores or deletes.
STORES: dict[str, str] = {
    **dict.fromkeys(("STORE_ATTR", "DELETE_ATTR"), "attributes"),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), "globals"),
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), "cells"),
    **dict.fromkeys(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"), "items"),
}


@functools.lru_cache(512)
def uses_of(code: types.CodeType) -> CodeUses:
    kinds: dict[str, set[Any]] = {kind: set() for kind in ("names", "attributes", "globals", "cells", "items")}
    kinds["names"].update(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in STORES:
            kinds[STORES[instruction.opname]].add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = uses_of(constant)
            for kind in ("names", "attributes", "globals", "cells"):
                kinds[kind] |= getattr(inner, kind)
            kinds["items"] |= {True} if inner.items else set()
    names, attributes, globals_, cells = (
        frozenset(kinds[kind]) for kind in ("names", "attributes", "globals", "cells")
    )
    return CodeUses(names, attributes, globals_, cells - set(code.co_cellvars), bool(kinds["items"]))


class ReachedObjects:
    """Everything that some objects lead to: by reference, and by the names that functions use."""

    def __init__(self, roots: Iterable[object]) -> None:
        self.objects: dict[int, object] = {}
        self.uses: list[CodeUses] = []
        self.names: frozenset[str] = IMPLICIT
        self.complete = True
        self._spaces: list[Any] = []  # classes and modules, of which only what is named is followed
        self._follow(list(roots))
        before = -1
        while before != len(self.objects):
            before = len(self.objects)
            self.names = IMPLICIT.union(*(code.names for code in self.uses))
            for space in list(self._spaces):
                self._follow([vars(space)[name] for name in self.names & vars(space).keys()])

    def _follow(self, pending: list[object]) -> None:
        while pending:
            step = pending.pop()
            if id(step) in self.objects or step is None or isinstance(step, (str, int, float, torch.Tensor)):
                continue
            if len(self.objects) > LIMIT:
                self.complete = False
                return
            self.objects[id(step)] = step
            pending.extend(self._parts(step))

    def _parts(self, step: Any) -> Iterator[object]:
        if isinstance(step, types.CodeType):
            self.uses.append(uses_of(step))
        elif isinstance(step, types.FunctionType):
            if policy.is_library_module(step.__module__ or ""):
                yield from step.__closure__ or ()
            else:
                yield from self._function_parts(step)
        elif isinstance(step, types.CellType):
            with contextlib.suppress(ValueError):  # an empty one
                yield step.cell_contents
        elif isinstance(step, types.MethodType):
            yield from (step.__self__, step.__func__)
        elif isinstance(step, functools.partial):
            yield from (step.func, *step.args, *step.keywords.values())
        elif isinstance(step, types.ModuleType):
            if not policy.is_library_module(step.__name__):
                self._spaces.append(step)
        elif isinstance(step, type):
            if not policy.is_library_module(step.__module__):
                self._spaces.append(step)
                yield from step.__bases__
        elif isinstance(step, (list, tuple, set, frozenset, collections.deque)):
            yield from step
        elif isinstance(step, dict):
            yield from (*step.keys(), *step.values())
        elif isinstance(step, (staticmethod, classmethod, property)):
            yield from (getattr(step, name, None) for name in ("__func__", "fget", "fset", "fdel"))
        else:
            yield from self._instance_parts(step)

    def _function_parts(self, function: types.FunctionType) -> Iterator[object]:
        yield function.__code__
        yield from function.__closure__ or ()
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        globals_ = function.__globals__
        yield from (globals_[name] for name in uses_of(function.__code__).names & globals_.keys())

    def _instance_parts(self, step: Any) -> Iterator[object]:
        yield type(step)
        yield getattr(step, "__self__", None)
        for name, value in getattr(step, "__dict__", {}).items():
            if isinstance(step, torch.nn.Module) and name in MODULE_FIELDS and isinstance(value, dict):
                yield from value.values()
            else:
                yield value

    def may_change(self, obj: object, names_read: frozenset[str]) -> bool:
        """Whether the functions could change an object of which only attributes of certain names are read."""
        if id(obj) not in self.objects:
            return False
        if isinstance(obj, types.CellType):
            return any(code.cells for code in self.uses)
        if isinstance(obj, CONTAINERS):
            return any(code.changes_containers for code in self.uses)
        return any(code.names & REFLECTION or code.attributes & names_read for code in self.uses)


def keeps_apart(
    roots: tuple[object, ...],
    read: tuple[object, ...],
    changed: tuple[object, ...],
    names_read: frozenset[str],
    names_changed: frozenset[str],
) -> bool:
    """Whether code behind ``roots`` neither touches what was changed nor changes what was read."""
    reach = ReachedObjects(roots)
    return (
        reach.complete
        and not any(id(obj) in reach.objects for obj in changed)
        and not any(reach.may_change(obj, names_read) for obj in read)
        and not any(code.globals & names_read for code in reach.uses)
        and not reach.names & names_changed
    )
