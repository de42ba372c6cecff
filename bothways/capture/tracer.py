"""The state of one capture: the graph, the guards, the effects, and the frames being interpreted.

Everything a Value or an opcode needs from its surroundings comes through the Tracer. It reads user
objects and never changes them, so that a capture which stops leaves no trace.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from bothways.capture.guards.guards import Guard, GuardSet
from bothways.capture.guards.sources import Attr, Injected, Item, Reading, Source, WeakInjected
from bothways.capture.overrides.overrides import Overrides
from bothways.capture.recording.graph import GraphBuilder
from bothways.capture.saved_tensors import SavedTensors
from bothways.capture.shapes.symbols import Symbols
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core.base import LazyValue, NotConstant, Value
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.exceptions import new_exception
from bothways.capture.wrap import look_at
from bothways.capture.writing.definitions import Definitions
from bothways.capture.writing.effects import Effects
from bothways.errors import UNKNOWN_POSITION, Break, Position, Unsupported
from bothways.runtime.listening import heard
from bothways.runtime.size_history import SizeHistory
from bothways.source_text import identifier, printable

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame
    from bothways.capture.values.generators.generators import GeneratorValue
    from bothways.capture.values.hooks.hooks import Event
    from bothways.capture.values.objects.exceptions import ExceptionValue
    from bothways.capture.values.tensors.random_numbers import Draw


@dataclass
class CapturedFunction:
    """The captured function. The program is for others of the same code, too, unless it is ``bound`` to this one."""

    source: Injected
    is_bound: bool = False


class Tracer:
    """One capture in progress."""

    def __init__(self, depth_limit: int = 100, tag: str = "", history: SizeHistory | None = None) -> None:
        """``tag`` goes into the names of injected objects, so that several programs share one namespace."""
        self.tag = tag
        self.symbols = Symbols(self, history or SizeHistory(dynamic=False))
        self.graph = GraphBuilder(self)
        self.guards = GuardSet()
        self.effects = Effects()
        self.overrides = Overrides()
        self.definitions = Definitions()
        self.frames: list[Frame] = []
        # The exceptions being handled: by the program, and by each generator that is running, innermost last.
        self.handling: list[ExceptionValue | None] = [None]
        self.handled_outside: BaseException | None = None  # by whoever called the captured function
        self.generators: list[GeneratorValue] = []  # all that were made
        # Variables whose content may never be asked for; that they have one must be so at the next call, too.
        self.looked_up: list[Source] = []
        self.namespace: dict[str, object] = {}
        self.depth_limit = depth_limit
        self.is_continuation = False
        self.assumes = True  # whether the graph may rely on data, and fail where it is otherwise
        self.fullgraph = False  # whether the user wants an error where something is left to plain Python
        # Where operations were believed to raise, and plain Python then came through.
        self.disbelieved: Collection[Position] = ()
        self.open_contexts: list[Any] = []  # torch contexts entered by the program and not left yet
        self.grad_after: bool | None = None  # the grad mode that the program leaves behind, if it is another one
        self.grad_inside = True  # and the one inside of the contexts that it leaves open
        self.changed_settings: list[Any] = []  # settings that the program changes, as they were
        self.default_devices: list[Any] = []  # where tensors are made, the caller's default device first
        self.registrations: list[Event] = []  # hooks and the like, in the order they were registered
        # Questions about tensors and modes whose answer may be another one when the same code runs later.
        self.asked: set[str] = set()
        # Objects that the user's Python changes while the graph runs: what they hold from then on is unknown.
        self.left_to_python: list[tuple[object, Value]] = []
        self.saved_tensors = SavedTensors()
        self.draws: list[Draw] = []  # calls of Python's random number generators, in order
        # What can be judged only when everything was looked at; runs before the guards are complete.
        self.final_checks: list[Callable[[], None]] = []
        self.root: CapturedFunction | None = None
        self._injected: dict[int, Injected] = {}
        self._expected: dict[Source, Guard] = {}
        # Every external object that was looked at, by id: one object is one Value, however it was reached.
        self._known: dict[int, tuple[object, Value]] = {}

    def fork(self) -> Tracer:
        """A tracer for code that is only looked at: it shares the namespace, so that its guards can be taken over."""
        other = Tracer(self.depth_limit, self.tag)
        other.fullgraph, other.assumes, other.handled_outside = self.fullgraph, self.assumes, self.handled_outside
        other.disbelieved = self.disbelieved
        other.frames, other.default_devices = list(self.frames), list(self.default_devices)
        other.namespace, other._injected, other.root = self.namespace, self._injected, self.root
        other.definitions = self.definitions
        other.symbols = self.symbols.without_new_ones(other)
        return other

    def release(self) -> None:
        """Let go of the user's objects; what is left refers to itself, and lives until Python looks for such."""
        self._known.clear()
        self.graph.inputs, self.graph.objects = [], []
        self.effects, self.definitions = Effects(), Definitions()
        self.handled_outside = None
        self.generators, self.registrations, self.left_to_python, self.final_checks = [], [], [], []

    def leave(self) -> None:
        """Let go of the program, which is complete: it is not to wait for Python to look for what refers to itself."""
        self.namespace, self.guards = {}, GuardSet()

    def abandon(self) -> None:
        """Let go of everything."""
        self.release()
        self.leave()

    # Positions and stops.

    def where(self) -> Position:
        return self.frames[-1].position() if self.frames else UNKNOWN_POSITION

    def stack(self) -> tuple[Position, ...]:
        return tuple(frame.position() for frame in reversed(self.frames[:-1]))

    def stop(self, code: str, reason: str) -> NoReturn:
        """End the capture with a break."""
        where = self.where()
        if code == "op_failed" and where in self.disbelieved:
            code, reason = "op_unknown", f"{reason} here, and plain Python came through"
        raise Unsupported(Break(code, reason, where, self.stack()))

    def throw(self, kind: type[BaseException], *args: object) -> NoReturn:
        """Raise an exception inside the captured program."""
        raise Raised(new_exception(self, kind, args))

    # Objects from outside.

    def wrap(self, obj: object, source: Source) -> Value:
        """A Value for an object that is merely passed around; nothing is guarded until it is looked at."""
        return LazyValue(self, obj, source)

    def member(self, obj: object, source: Attr | Item, present: str) -> Value:
        """Like ``wrap``, for what was found in something that may not have it next time.

        ``present`` is the guard for that, over the origin as {s0} and the name as {c0}.
        """
        name = source.attribute if isinstance(source, Attr) else source.key
        self._expected.setdefault(source, Guard(present, (source.origin,), (name,), self.where()))
        return self.wrap(obj, source)

    def guard_expected(self) -> None:
        """Guard the presence of members that no other guard reads."""
        for check in self.final_checks:
            check()
        read: set[Source] = set()
        for guard in self.guards:
            for source in guard.sources:
                step: Source | None = source
                while step is not None and step not in read:
                    read.add(step)
                    step = step.base
        for source, guard in self._expected.items():
            if source not in read:
                self.guards.add(guard)

    def look_at(self, obj: object, source: Source) -> Value:
        """The Value for an object whose kind or content the program depends on; adds the guards."""
        if any(obj is changed for changed, _ in self.left_to_python):
            self.stop("autograd_function", f"{source} is read after a custom function has changed it")
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
        found = self._known.get(id(obj))
        return found[1] if found else None

    def object_of(self, value: object) -> object | None:
        """The object from outside that a Value stands for, None when none is known."""
        return next((obj for obj, known in self._known.values() if known is value), None)

    def expected_sources(self) -> list[Source]:
        return list(self._expected)

    def known_objects(self) -> list[tuple[object, Value]]:
        return list(self._known.values())

    def known_values(self) -> list[Value]:
        return [value for _, value in self._known.values()]

    def guard(self, template: str, *operands: object) -> None:
        """Assume something: Sources among the operands fill {s0}, {s1} …, everything else {c0}, {c1} …"""
        sources = tuple(operand for operand in operands if isinstance(operand, Source))
        constants = tuple(operand for operand in operands if not isinstance(operand, Source))
        self.guards.add(Guard(template, sources, constants, self.where()))

    def inject(self, obj: object, label: str) -> Injected:
        """Keep an object in the program's namespace and give the source that reads it."""
        source = self._injected.get(id(obj))
        if source is None:
            hint = identifier(label.rpartition(".")[2], "object")
            source = Injected(f"_{hint[:30]}_{self.tag}{len(self._injected)}", printable(label))
            self._injected[id(obj)] = source
            self.namespace[source.key] = obj
        return source

    def inject_weakly(self, obj: object, label: str) -> Injected:
        """The same for an object that the program must not keep alive."""
        source = self._injected.get(id(obj))
        if source is None:
            source = WeakInjected(self.inject(weakref.ref(obj), label).key, label)
            self._injected[id(obj)] = source
        return source

    def globals_source(self, globals_: dict[str, Any]) -> Injected:
        return self.inject(globals_, f"G[{globals_.get('__name__', '?')}]")

    # Running code.

    @property
    def handled(self) -> ExceptionValue | None:
        """The exception a bare ``raise`` raises again, and the context of a new one."""
        return next((exception for exception in reversed(self.handling) if exception is not None), None)

    def outer_exception(self) -> Value:
        """What the caller is handling, for exceptions of a program that handles none itself."""
        return self.wrap(self.handled_outside, Reading(self.inject(sys.exception, "sys.exception"), "{}()"))

    def inline(self, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Capture a call of a Python function that belongs to bothways or to a library: a stand-in."""
        assert isinstance(function, types.FunctionType)
        return library_function(self, function).call(self, args, kwargs)

    def run_const(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute with constants; an exception becomes the captured program's own."""
        before = heard()
        try:
            result = function(*args, **kwargs)
        except (Raised, Unsupported, NotConstant):
            raise
        except Exception as error:
            raise Raised(new_exception(self, type(error), error.args)) from None
        if heard() != before and not self.fullgraph:
            self.stop("call_unknown", f"{getattr(function, '__name__', function)} warns")
        return result
