"""What stands for a Python object while a function is captured: the slots every Value may have.

A Value implements the slots its kind of object has and inherits a break for the rest, so what is not
supported stops the capture instead of giving a wrong answer. Slots take the tracer and realized Values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from bothways.capture.guards.sources import Source
from bothways.capture.values.core import linked, wording
from bothways.source_text import with_article

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

Args = list["Value"]
Kwargs = dict[str, "Value"]


class NotConstant(Exception):
    """The Value's content is not a plain Python object that capture may compute with."""


class Value:
    """The base of all Values; ``source`` is set when the object existed before the call."""

    source: Source | None = None
    told_later = False  # whether only the program finds out which number or truth it is
    holder: Value | None = None  # whose built-in part it is: an instance of a class that extends a built-in one

    # What the object is.

    def python_type(self) -> type:
        raise AssertionError(f"{type(self).__name__} has no Python type")

    def realize(self) -> Value:
        """The Value behind a lazy one; everything else is itself."""
        return self

    def constant(self) -> Any:
        """The Python object itself, for kinds whose content capture may compute with."""
        raise NotConstant(self.describe())

    @property
    def is_constant(self) -> bool:
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def hash_key(self, tracer: Tracer) -> Hashable:
        """A key that is equal exactly when Python would find the objects equal as dictionary keys."""
        tracer.stop("hash_unknown", f"cannot use {self.describe()} as a key")

    def identity(self) -> object:
        """The thing two Values share exactly when they stand for the same object."""
        return self

    def describe(self) -> str:
        return with_article(self.python_type().__name__)

    def overrides_functions(self) -> bool:
        """Whether PyTorch's functions, given the object, ask its ``__torch_function__``; containers ask for theirs."""
        return False

    # What can be done with it.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        tracer.stop("attribute_unknown", f"cannot read {name!r} of {self.describe()}")

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        tracer.stop("mutation_unknown", f"cannot set {name!r} of {self.describe()}")

    def del_attr(self, tracer: Tracer, name: str) -> None:
        tracer.stop("mutation_unknown", f"cannot delete {name!r} of {self.describe()}")

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if not any("__call__" in base.__dict__ for base in self.python_type().__mro__):
            self._no_slot(tracer, "is not callable")
        tracer.stop("call_unknown", f"cannot call {self.describe()}")

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Call a method of the object's built-in type; user-defined ones are found through ``get_attr``."""
        tracer.stop("call_unknown", f"cannot call the method {name!r} of {self.describe()}")

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        self._no_slot(tracer, "is not subscriptable")

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self._no_slot(tracer, "does not support item assignment")

    def del_item(self, tracer: Tracer, key: Value) -> None:
        self._no_slot(tracer, "doesn't support item deletion")

    def iterate(self, tracer: Tracer) -> Value:
        """An iterator over the object, itself a Value with ``next``."""
        self._no_slot(tracer, "is not iterable")

    def next(self, tracer: Tracer) -> Value:
        """The iterator's next element; raises the captured StopIteration at its end."""
        self._no_slot(tracer, "is not an iterator")

    def truth(self, tracer: Tracer) -> bool:
        return True

    def length(self, tracer: Tracer) -> int:
        tracer.throw(TypeError, f"object of type {wording.name_in_c(self.python_type())!r} has no len()")

    def length_value(self, tracer: Tracer) -> Value | None:
        """The length of what grows from call to call, as a number; None where it is the constant of ``length``."""
        return None

    def contains(self, tracer: Tracer, item: Value) -> bool:
        kind = self.python_type()
        if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
            tracer.throw(TypeError, f"argument of type {wording.name_in_c(kind)!r} {wording.NO_CONTAINER}")
        iterator = linked.protocols.iterate(tracer, self)
        elements = linked.protocols.elements(tracer, iterator)
        return any(linked.protocols.equal(tracer, element, item) for element in elements)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        """``self op other`` (or ``other op self`` when reflected); None stands for NotImplemented."""
        return None

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        shown = {"__neg__": "unary -", "__pos__": "unary +", "__invert__": "unary ~"}.get(method, "abs()")
        tracer.throw(TypeError, f"bad operand type for {shown}: {wording.name_in_c(self.python_type())!r}")

    def format(self, tracer: Tracer, spec: str) -> str | None:
        """What a ``__format__`` of its own gives; None when the kind has none."""
        return None

    def text(self, tracer: Tracer, conversion: str) -> str:
        """``str()`` or ``repr()`` of the object, whichever ``conversion`` names."""
        tracer.stop("call_unknown", f"cannot make text of {self.describe()}")

    # What is left of it after the call.

    mutated = False  # whether an external object was changed
    only_registers = False  # whether its effect is to register something for later, and changes nothing now
    two_phase = False  # whether it is made empty first and filled afterwards
    is_constant_content = False  # whether its text is a literal, cheaper than reading it again

    def note_change(self, tracer: Tracer) -> None:
        """Captured code has changed the object: one from outside is brought to that state after the call."""
        if self.source is not None:
            self.mutated = True
            tracer.effects.mutated(self)

    def parts(self) -> Iterable[Value]:
        """The Values it refers to, as far as the program has to build them."""
        return ()

    def name_hint(self) -> str:
        return self.python_type().__name__.lower()

    def rebuild(self, emitter: Emitter) -> str:
        """The expression that gives the object in the generated program."""
        emitter.tracer.stop("escape", f"cannot rebuild {self.describe()} after the graph ran")

    def rebuild_empty(self, emitter: Emitter) -> str:
        """The expression that makes the object before its content, for objects that can contain themselves."""
        emitter.tracer.stop("escape", f"cannot rebuild {self.describe()}, which contains itself")

    def fill(self, emitter: Emitter, name: str) -> None:
        """Build statements that give the object called ``name`` its content."""

    def emit_effects(self, emitter: Emitter) -> None:
        """Effect statements that bring the external object to the state capture left it in."""
        raise AssertionError(f"{type(self).__name__} cannot be mutated")

    def _no_slot(self, tracer: Tracer, message: str) -> NoReturn:
        tracer.throw(TypeError, f"{wording.name_in_c(self.python_type())!r} object {message}")


class LazyValue(Value):
    """An object that was passed around but not looked at yet, so nothing is assumed about it."""

    def __init__(self, tracer: Tracer, obj: object, source: Source) -> None:
        self.tracer, self.obj, self.source = tracer, obj, source
        self._real: Value | None = None

    def realize(self) -> Value:
        if self._real is None:
            self._real = self.tracer.look_at(self.obj, self._known_source())
        return self._real

    def overrides_functions(self) -> bool:
        kind = type(self.obj)
        if kind in (list, tuple) or hasattr(kind, "__torch_function__"):
            return self.realize().overrides_functions()
        return False  # a hook, say, which does not have to be looked at

    def _known_source(self) -> Source:
        assert self.source is not None
        return self.source

    def if_realized(self) -> Value:
        """The Value behind it, if the object was looked at by this very path; else itself.

        That the object is known by another path counts for nothing: no guard says that the two are one.
        """
        return self._real or self

    def python_type(self) -> type:
        return self.realize().python_type()

    def constant(self) -> Any:
        return self.realize().constant()

    def describe(self) -> str:
        return with_article(type(self.obj).__name__)

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.read(self._known_source())
