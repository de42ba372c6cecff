"""Generators that live inside the capture: suspended frames, resumed by whoever iterates.

A generator keeps the exception it is handling to itself while it is suspended, and passes on what is sent
or thrown to the generator it delegates to. One that would have to clean up after the call stops the capture.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bothways.capture.bytecode.interpreter import Frame, Signal
from bothways.capture.bytecode.opcodes.generators import delegate_of, end_delegation
from bothways.capture.values.code.attributes import class_attribute
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import is_none
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.generators import suspended
from bothways.capture.values.objects.exceptions import ExceptionValue, as_exception, new_exception
from bothways.capture.writing.emit import resolve
from bothways.runtime.generators import finished

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# Since 3.12 the bytecode itself looks at what leaves a delegate or the generator; since 3.13 close() gives what
# was returned.
BYTECODE_DECIDES = sys.version_info >= (3, 12)
CLOSE_GIVES_RESULT = sys.version_info >= (3, 13)


class GeneratorValue(Value):
    """A generator; ``frame`` is None once it has finished."""

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.frame: Frame | None = frame
        self._name, self._taken = frame.function.name, 0
        self.started = False
        frames = tracer.running.frames
        self.made_at = frames[0].steps - 1 if frames else 0  # the instruction of the captured function
        self.running = False
        self._handled: ExceptionValue | None = None
        tracer.running.add_generator(self)

    def python_type(self) -> type:
        return types.GeneratorType

    def iterate(self, tracer: Tracer) -> Value:
        return self

    def next(self, tracer: Tracer) -> Value:
        return self.resume(tracer, ConstantValue(None))

    def resume(self, tracer: Tracer, sent: Value) -> Value:
        """Run to the next yield; the captured StopIteration carries the return value."""
        self._check_idle(tracer)
        frame = self.frame
        if frame is None:
            tracer.throw(StopIteration)
        if self.started:
            frame.push(sent)
        elif not is_none(sent):
            tracer.throw(TypeError, "can't send non-None value to a just-started generator")
        self.started = True
        return self._run(tracer, frame)

    def throw(self, tracer: Tracer, raised: ExceptionValue) -> Value:
        """Raise an exception where the generator stands, or in the one it delegates to."""
        self._check_idle(tracer)
        frame = self.frame
        if frame is None:
            raise Raised(raised)
        delegate = self._delegate(frame)
        if delegate is None:
            return self._throw_here(tracer, frame, raised)
        try:
            if issubclass(raised.cls, GeneratorExit):
                self._while_running(lambda: _close(tracer, delegate))
                return self._throw_here(tracer, frame, raised)
            if isinstance(delegate, GeneratorValue):
                return self._while_running(lambda: delegate.throw(tracer, raised))
            method = protocols.try_get_attr(tracer, delegate, "throw")
            if method is None:
                return self._throw_here(tracer, frame, raised)
            return self._while_running(lambda: protocols.call(tracer, method, [raised]))
        except Raised as error:
            if self.frame is None:
                raise  # it came out of this generator, not out of the delegate
            return self._after_delegate(tracer, frame, error)

    def _after_delegate(self, tracer: Tracer, frame: Frame, error: Raised) -> Value:
        """Go on in this generator with what left the one it delegates to."""
        if BYTECODE_DECIDES:
            return self._throw_here(tracer, frame, error.value)
        end_delegation(frame)
        if not issubclass(error.value.cls, StopIteration):
            return self._throw_here(tracer, frame, error.value)
        frame.push(protocols.get_attr(tracer, error.value, "value"))
        return self._run(tracer, frame)

    def close(self, tracer: Tracer) -> Value:
        """``close()``: raise GeneratorExit where the generator stands."""
        self._check_idle(tracer)
        nothing = ConstantValue(None)
        frame = self.frame
        if frame is None or not self.started:
            self.frame = None
            return nothing
        try:
            self.throw(tracer, new_exception(tracer, GeneratorExit, []))
        except Raised as error:
            if issubclass(error.value.cls, StopIteration):
                return protocols.get_attr(tracer, error.value, "value") if CLOSE_GIVES_RESULT else nothing
            if issubclass(error.value.cls, GeneratorExit):
                return nothing
            raise
        tracer.throw(RuntimeError, "generator ignored GeneratorExit")

    # Running the frame.

    def _check_idle(self, tracer: Tracer) -> None:
        if self.running:
            tracer.throw(ValueError, "generator already executing")

    def _delegate(self, frame: Frame) -> Value | None:
        return delegate_of(frame) if self.started else None

    def _while_running(self, action: Callable[[], Value]) -> Value:
        self.running = True
        try:
            return action()
        finally:
            self.running = False

    def _throw_here(self, tracer: Tracer, frame: Frame, raised: ExceptionValue) -> Value:
        if not self.started:
            self.frame, self.started = None, True
            if issubclass(raised.cls, StopIteration) and not BYTECODE_DECIDES:
                raised = stop_iteration_error(tracer, raised)
            raise Raised(raised)
        frame.push(ConstantValue(None))  # CPython sends None along with the exception
        return self._run(tracer, frame, Raised(raised))

    def _run(self, tracer: Tracer, frame: Frame, thrown: Raised | None = None) -> Value:
        self.running = True
        tracer.running.resume_generator(self._handled)
        try:
            if thrown is not None:
                thrown.value.chain(tracer, context=self._handled)
                frame.throw_in(thrown)
            signal = frame.run()
        except Raised as error:
            self.frame = None
            if issubclass(error.value.cls, StopIteration):
                raise Raised(stop_iteration_error(tracer, error.value)) from None
            raise
        finally:
            self._handled = tracer.running.suspend_generator()
            self.running = False
        assert frame.result is not None
        if signal is Signal.YIELD:
            self._taken += 1
            return frame.result
        self.frame = None
        if is_none(frame.result):
            tracer.throw(StopIteration)
        tracer.throw(StopIteration, frame.result)

    # Attributes.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return class_attribute(tracer, self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        method = _METHODS.get(name)
        if method is None:
            return super().call_method(tracer, name, args, kwargs)
        return method(self, tracer, *args)

    def hash_key(self, tracer: Tracer) -> GeneratorValue:
        return self

    # After the call.

    def parts(self) -> Iterable[Value]:
        return () if self.frame is None else suspended.parts(self.frame, self.started)

    def rebuild(self, emitter: Emitter) -> str:
        if self.running:
            emitter.tracer.stop("generator_escapes", "a generator leaves the function while it runs")
        if self.frame is None:
            return emitter.name(self, f"{emitter.inject(finished, 'finished')}({self._name!r})")
        return emitter.name(self, suspended.made_again(self.frame, self._taken, emitter))

    def must_clean_up(self) -> bool:
        """Whether dropping the generator runs code of its own: it stands in a ``try`` or a ``with``."""
        frame = self.frame
        if frame is None or not self.started:
            return False
        instructions = frame.decoded.instructions
        row = frame.decoded.handler_for(frame.index - 1)
        while row is not None:
            if instructions[row.target].name in ("CLEANUP_THROW", "COPY"):
                row = frame.decoded.handler_for(row.target)  # what the compiler puts around handlers of its own
            elif (passed := _where_exit_passes(frame, row.target)) is not None:
                row = frame.decoded.handler_for(passed)
            else:
                break
        # The handler around a whole generator, which every one has since 3.12, only renames StopIteration.
        return row is not None and instructions[row.target].name != "CALL_INTRINSIC_1"


def _where_exit_passes(frame: Frame, handler: int) -> int | None:
    """Where GeneratorExit leaves an ``except`` that names one built-in exception, which it is none of."""
    first = frame.decoded.instructions[handler : handler + 4]
    if [each.name for each in first[:3]] != ["PUSH_EXC_INFO", "LOAD_GLOBAL", "CHECK_EXC_MATCH"]:
        return None
    _, load, _, jump = first
    caught = None if load.argval in frame.globals else getattr(builtins, load.argval, None)
    if not isinstance(caught, type) or issubclass(GeneratorExit, caught) or "IF_FALSE" not in jump.name:
        return None
    return jump.target if frame.decoded.instructions[jump.target].name == "RERAISE" else None


def _throw(owner: GeneratorValue, tracer: Tracer, kind: Value, *rest: Value) -> Value:
    arguments = [value for value in rest[:1] if not is_none(value)]
    complaint = "exceptions must be classes or instances deriving from BaseException, not {}"
    return owner.throw(tracer, as_exception(tracer, kind, arguments, complaint))


_METHODS: dict[str, Callable[..., Value]] = {
    "__next__": GeneratorValue.next,
    "__iter__": GeneratorValue.iterate,
    "send": GeneratorValue.resume,
    "throw": _throw,
    "close": GeneratorValue.close,
}


def _close(tracer: Tracer, delegate: Value) -> Value:
    """Close what a generator delegates to, if it can be closed."""
    if isinstance(delegate, GeneratorValue):
        return delegate.close(tracer)
    method = protocols.try_get_attr(tracer, delegate, "close")
    return ConstantValue(None) if method is None else protocols.call(tracer, method, [])


def stop_iteration_error(tracer: Tracer, raised: ExceptionValue) -> ExceptionValue:
    """What a StopIteration turns into when it leaves a generator."""
    error = new_exception(tracer, RuntimeError, ["generator raised StopIteration"])
    error.chain(tracer, cause=raised, context=raised)
    return error


def check_abandoned(tracer: Tracer, kept: Iterable[Value]) -> None:
    """Stop when a generator is left behind that Python would clean up at a moment of its own choosing."""
    left = [generator for generator in tracer.running.generators if generator.must_clean_up()]
    if not left:
        return
    reached = _reached(kept)
    if any(id(generator) not in reached for generator in left):
        tracer.stop("generator_escapes", "a generator with a cleanup of its own is dropped before its end")


def _reached(roots: Iterable[Value]) -> set[int]:
    """What the program builds, by id."""
    pending = [resolve(root) for root in roots]
    reached: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) not in reached and (value.source is None or value.mutated):
            reached.add(id(value))
            pending += [resolve(part) for part in value.parts()]
    return reached
