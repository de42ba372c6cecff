"""The state of one capture: the graph, the guards, the effects, and the frames being interpreted.

Everything a Value or an opcode needs from its surroundings comes through the Tracer. It reads user
objects and never changes them, so that a capture which stops leaves no trace.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from bothways.capture.guards.guards import Guard
from bothways.capture.guards.sources import Attr, Injected, Item, Reading, Source
from bothways.capture.overrides.overrides import Overrides
from bothways.capture.recording.graph import GraphBuilder
from bothways.capture.shapes.symbols import Symbols
from bothways.capture.state.assumptions import Assumptions
from bothways.capture.state.computed_again import ComputedAgain
from bothways.capture.state.namespace import Namespace
from bothways.capture.state.options import CaptureOptions
from bothways.capture.state.running import Running
from bothways.capture.state.torch_state import CapturedTorchState
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core.base import LazyValue, NotConstant, Value
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.exceptions import new_exception
from bothways.capture.wrap import look_at
from bothways.capture.writing.definitions import Definitions
from bothways.capture.writing.effects import Effects
from bothways.errors import Break, Position, Unsupported
from bothways.runtime.listening import heard
from bothways.runtime.size_history import SizeHistory


class Tracer:
    """One capture in progress: what it was told, its parts, and the doors that most code goes through.

    A part is changed by its own methods alone; everything else reads it, and asks it.
    """

    def __init__(
        self,
        options: CaptureOptions,
        history: SizeHistory | None = None,
        handled_outside: BaseException | None = None,
    ) -> None:
        self.options = options
        self.running = Running(handled_outside)
        self.assumptions = Assumptions()
        self.names = Namespace(options.tag)
        self.torch_state = CapturedTorchState()
        self.symbols = Symbols(self, history or SizeHistory(dynamic=False))
        self.graph = GraphBuilder(self)
        self.effects = Effects()
        self.overrides = Overrides()
        self.definitions = Definitions()
        self.computed_again = ComputedAgain()
        # Every external object that was looked at, by id: one object is one Value, however it was reached.
        self._known: dict[int, tuple[object, Value]] = {}

    def fork(self) -> Tracer:
        """A tracer for code that is only looked at: it shares the namespace, so that its guards can be taken over."""
        other = Tracer(replace(self.options, is_continuation=False, copies_views=False))
        other.running, other.torch_state = self.running.fork(), self.torch_state.fork()
        other.names, other.definitions = self.names.shared(), self.definitions
        other.computed_again = self.computed_again.fork()
        other.symbols = self.symbols.without_new_ones(other)
        return other

    def meet_definitions_apart(self) -> None:
        """From now on the definitions that this code meets are not those that its caller met."""
        self.definitions = Definitions()

    def release(self) -> None:
        """Let go of the user's objects; what is left refers to itself, and lives until Python looks for such."""
        self._known.clear()
        self.graph.release()
        self.effects, self.definitions, self.computed_again = Effects(), Definitions(), ComputedAgain()
        self.running.release()
        self.assumptions.release()

    def leave(self) -> None:
        """Let go of the program, which is complete: it is not to wait for Python to look for what refers to itself."""
        self.names.leave()
        self.assumptions.leave()

    def abandon(self) -> None:
        """Let go of everything."""
        self.release()
        self.leave()

    # Positions and stops.

    def where(self) -> Position:
        return self.running.where()

    def stack(self) -> tuple[Position, ...]:
        return self.running.stack()

    def stop(self, code: str, reason: str) -> NoReturn:
        """End the capture with a break."""
        where = self.where()
        if code == "op_failed" and where in self.options.disbelieved:
            code, reason = "op_unknown", f"{reason} here, and plain Python came through"
        raise Unsupported(Break(code, reason, where, self.stack()))

    def throw(self, kind: type[BaseException], *args: object, **fields: object) -> NoReturn:
        """Raise an exception inside the captured program; ``fields`` is what else Python notes on it."""
        raise Raised(new_exception(self, kind, args, fields))

    # Objects from outside.

    def wrap(self, obj: object, source: Source) -> Value:
        """A Value for an object that is merely passed around; nothing is guarded until it is looked at."""
        return LazyValue(self, obj, source)

    def member(self, obj: object, source: Attr | Item, present: str) -> Value:
        """Like ``wrap``, for what was found in something that may not have it next time.

        ``present`` is the guard for that, over the origin as {s0} and the name as {c0}.
        """
        name = source.attribute if isinstance(source, Attr) else source.key
        self.assumptions.expect(source, Guard(present, (source.origin,), (name,), self.where(), self.running.led_by()))
        return self.wrap(obj, source)

    def look_at(self, obj: object, source: Source) -> Value:
        """The Value for an object whose kind or content the program depends on; adds the guards."""
        if any(obj is changed for changed, _ in self.effects.left_to_python):
            self.stop("autograd_function", f"{source} is read after a custom function has changed it")
        self.effects.check_not_put_off(obj)
        known = self._known.get(id(obj))
        if known is not None:
            value = known[1]
            if value.source is not None and value.source != source:
                self.guard("{s0} is {s1}", source, value.source)
            return value
        return look_at(self, obj, source)

    def remember(self, obj: object, value: Value) -> None:
        """Make ``value`` the one Value of ``obj``."""
        self._known[id(obj)] = (obj, value)

    def known(self, obj: object) -> Value | None:
        pair = self._known.get(id(obj))
        return pair[1] if pair else None

    def object_of(self, value: object) -> object | None:
        """The object from outside that a Value stands for, None when none is known."""
        return next((obj for obj, known in self._known.values() if known is value), None)

    def known_objects(self) -> list[tuple[object, Value]]:
        return list(self._known.values())

    def known_values(self) -> list[Value]:
        return [value for _, value in self._known.values()]

    def guard(self, template: str, *operands: object) -> None:
        """Assume something: Sources among the operands fill {s0}, {s1} …, everything else {c0}, {c1} …"""
        sources = tuple(operand for operand in operands if isinstance(operand, Source))
        constants = tuple(operand for operand in operands if not isinstance(operand, Source))
        self.assumptions.add(Guard(template, sources, constants, self.where(), self.running.led_by()))

    def inject(self, obj: object, label: str) -> Injected:
        """Keep an object in the program's namespace and give the source that reads it."""
        return self.names.inject(obj, label)

    def inject_weakly(self, obj: object, label: str) -> Injected:
        """The same for an object that the program must not keep alive."""
        return self.names.inject_weakly(obj, label)

    def globals_source(self, globals_: dict[str, Any]) -> Injected:
        return self.inject(globals_, f"G[{globals_.get('__name__', '?')}]")

    # Running code.

    def outer_exception(self) -> Value:
        """What the caller is handling, for exceptions of a program that handles none itself."""
        return self.wrap(self.running.handled_outside, Reading(self.inject(sys.exception, "sys.exception"), "{}()"))

    def inline(self, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Capture a call of a Python function that belongs to bothways or to a library: a stand-in."""
        assert isinstance(function, types.FunctionType)
        return library_function(self, function).call(self, args, kwargs)

    def run_const(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute with constants; an exception becomes the captured program's own, and a warning is left to Python."""
        before = heard()
        result = self.attempt(function, *args, **kwargs)
        if heard() != before and not self.options.fullgraph:
            self.stop("call_unknown", f"{getattr(function, '__name__', function)} warns")
        return result

    def attempt(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it now; an exception becomes the captured program's own."""
        try:
            return function(*args, **kwargs)
        except (Raised, Unsupported, NotConstant):
            raise
        except Exception as error:
            told = {"name": error.name, "path": error.path} if isinstance(error, ImportError) else {}
            raise Raised(new_exception(self, type(error), error.args, told)) from None
