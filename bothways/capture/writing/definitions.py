"""What one capture takes from definitions: names of library modules, library classes, bodies of functions.

They stay as they are in most processes, and in others they are patched. Captured code reads hundreds of them, so
they are not guarded one by one: each dictionary that holds some is one stamp (``runtime/stamps.py``).
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.guards import policy
from bothways.capture.guards.guards import STAMPED
from bothways.capture.guards.replaced import (
    AS_IMPORTED,
    is_as_imported,
    is_ours,
    is_replaced,
    mentioned,
    patched_of_tensors,
)
from bothways.runtime.stamps import MISSING, BodiesStamp, Body, NamesStamp, Stamp, SubclassStamp, mapping_behind

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Flags of classes: made at run time, and never to be changed.
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8

# What only matters where objects are made; PyTorch's own compiler replaces these of nn.Module when it is first used.
OF_CONSTRUCTION = ("__init__", "__setstate__", "___needs_generation_tag_patch", "___has_generation_tag_patch")

# The stamps of classes as they are now, which programs share; a class that was changed gets another one.
_of_classes: dict[tuple[type, bool], NamesStamp] = {}


class Definitions:
    """The definitions that a capture has met so far."""

    def __init__(self) -> None:
        self._names: dict[int, NamesStamp] = {}
        self._mappings: dict[type, dict[str, Any]] = {}
        self._classes: dict[type, bool] = {}  # with whether objects of it are made
        self._bodies: dict[types.FunctionType, Body] = {}
        self._pristine: dict[types.FunctionType, bool] = {}
        self._refused: dict[tuple[type, type], None] = {}
        # Attributes of tensors that are not PyTorch's: they are looked up like a user's.
        self.patched = patched_of_tensors()
        self.meet(torch.Tensor)

    def name(self, label: str, names: dict[str, Any], name: str) -> None:
        """A name of a library's module, or of a user's class, is read, or looked for in vain."""
        if is_ours(names):
            return
        stamp = self._names.get(id(names))
        if stamp is None:
            stamp = self._names[id(names)] = NamesStamp(label, names, {})
        stamp.expected.setdefault(name, names.get(name, MISSING))

    def class_name(self, cls: type, name: str) -> None:
        """A name of one class is looked for."""
        names = self._mappings.get(cls)
        if names is None:
            names = self._mappings[cls] = mapping_behind(cls)
        self.name(cls.__qualname__, names, name)

    def builtin(self, name: str) -> None:
        self.name("builtins", vars(builtins), name)

    def meet(self, cls: type, name: str = "") -> None:
        """Attributes of a class are looked up."""
        makes = name in OF_CONSTRUCTION
        if self._classes.get(cls, False) or (cls in self._classes and not makes):
            return
        metaclass: type = type(cls)
        for base in (*cls.__mro__, *metaclass.__mro__):
            self._classes[base] = makes or self._classes.get(base, False)

    def body(self, function: types.FunctionType) -> None:
        """A function is entered, or its body is known to do what a handler does."""
        if function not in self._bodies and not is_ours(function.__globals__):
            self._bodies[function] = Body.of(function)

    def knows(self, function: types.FunctionType) -> bool:
        """Whether the body of a function has to stay as it is."""
        return function in self._bodies

    def refuse(self, cls: type, parent: type) -> None:
        """An abstract class says that another is none of its subclasses."""
        self._refused[cls, parent] = None

    def absorb(self, other: Definitions) -> None:
        """Take over what code met that was looked at apart."""
        for names in other._names.values():
            for name in names.expected:
                self.name(names.label, names.names, name)
        for cls, makes in other._classes.items():
            self._classes[cls] = makes or self._classes.get(cls, False)
        self._bodies = {**other._bodies, **self._bodies}
        self._refused.update(other._refused)

    def names_another(self, target: Any) -> bool:
        """Whether a function of PyTorch's was taken before something else was put under its name.

        Graphs are text, and find functions by their names.
        """
        if type(target) is not types.BuiltinFunctionType:
            return False
        name = target.__name__
        if AS_IMPORTED[id(vars(torch))].get(name) is not target:
            return False
        self.name("torch", vars(torch), name)
        return vars(torch).get(name) is not target

    def is_pristine(self, function: types.FunctionType) -> bool:
        """Whether a function of PyTorch's that is one operation is all PyTorch's, with everything it calls.

        Then it can be a node of the graph: it is called when the graph is traced, and never looked into.
        """
        known = self._pristine.get(function)
        if known is None:
            known = self._pristine[function] = all(map(self._take, _called_by(function)))
        return known

    def _take(self, function: types.FunctionType) -> bool:
        self.body(function)
        if is_replaced(function):
            return False
        is_same = self.patched.isdisjoint(mentioned(function.__code__))
        for label, names, name in _names_in(function):
            self.name(label, names, name)
            is_same &= is_as_imported(names, name)
        return is_same

    def stamps(self) -> Iterator[Stamp]:
        """Everything that has to stay as it is."""
        yield from (stamp for stamp in self._names.values())
        for cls, makes in self._classes.items():
            if _can_change(cls):
                yield _stamp_of(cls, makes)
        if self._bodies:
            yield BodiesStamp(tuple(self._bodies.values()))
        if self._refused:
            yield SubclassStamp(tuple(self._refused))
        for body in self._bodies.values():
            if body.keyword_defaults:
                label = f"{body.function.__qualname__}.__kwdefaults__"
                yield NamesStamp(label, body.keyword_defaults, dict(body.keyword_defaults), is_whole=True)

    def guard(self, tracer: Tracer) -> None:
        """Assume all of it, and the classes of what the other guards ask about."""
        for guard in tracer.assumptions.guards:
            if guard.template == "type({s0}) is {c0}":
                cls = guard.constants[0]
                assert isinstance(cls, type)
                self.meet(cls)
        for stamp in self.stamps():
            tracer.guard(STAMPED, stamp)


def _can_change(cls: type) -> bool:
    """Whether a class is a library's and lets people replace its attributes; a user's is guarded by each of them."""
    is_open = cls.__flags__ & _HEAP and not cls.__flags__ & _IMMUTABLE
    module = cls.__module__
    return bool(is_open) and policy.is_library_module(module) and module.partition(".")[0] != "bothways"


def _stamp_of(cls: type, makes: bool) -> NamesStamp:
    known = _of_classes.get((cls, makes))
    if known is None or not known.holds():
        known = NamesStamp.of_class(cls, () if makes else OF_CONSTRUCTION)
        if getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls:  # made at run time it may go
            _of_classes[cls, makes] = known
    return known


# What a function of PyTorch's refers to.


def _called_by(function: types.FunctionType) -> tuple[types.FunctionType, ...]:
    """The function and those it may call that are operations, too."""
    functions: dict[types.FunctionType, None] = {}
    pending = [function]
    while pending:
        caller = pending.pop()
        if caller in functions:
            continue
        functions[caller] = None
        for _, names, name in _names_in(caller):
            value = names.get(name)
            if isinstance(value, types.FunctionType) and policy.treatment_of(value) is policy.Treatment.GRAPH:
                pending.append(value)
    return tuple(functions)


def _makes_names(module: types.ModuleType) -> bool:
    """Whether a module makes attributes on demand, so that one may be put in front of them."""
    return "__getattr__" in vars(module) or hasattr(type(module), "__getattr__")


def _names_in(function: types.FunctionType) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Global names that the code of a function mentions, and names of modules that it may read off them."""
    globals_ = function.__globals__
    listed = dict.fromkeys(mentioned(function.__code__))
    for name in listed:
        if name not in globals_:
            if name in vars(builtins):
                yield "builtins", vars(builtins), name
            continue
        yield policy.name_of(globals_), globals_, name
        module = globals_[name]
        if isinstance(module, types.ModuleType) and policy.is_library_module(module.__name__):
            members = listed if _makes_names(module) else [member for member in listed if member in vars(module)]
            yield from ((module.__name__, vars(module), member) for member in members)
