"""Generators that live inside the capture: suspended frames, resumed by whoever iterates."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from bothways.capture import protocols
from bothways.capture.interpreter import Frame, Signal
from bothways.capture.tracer import Observed
from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue
from bothways.capture.values.exceptions import new_exception

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer


class GeneratorValue(Value):
    """A generator; ``frame`` is None once it has finished."""

    def __init__(self, frame: Frame) -> None:
        self.frame: Frame | None = frame
        self.started = False
        self.running = False

    def python_type(self) -> type:
        return types.GeneratorType

    def iterate(self, tracer: Tracer) -> Value:
        return self

    def next(self, tracer: Tracer) -> Value:
        return self.resume(tracer, ConstantValue(None))

    def resume(self, tracer: Tracer, sent: Value) -> Value:
        """Run to the next yield; the captured StopIteration carries the return value."""
        frame = self.frame
        if frame is None:
            tracer.throw(StopIteration)
        if not self.started:
            if not (isinstance(sent, ConstantValue) and sent.content is None):
                tracer.throw(TypeError, "can't send non-None value to a just-started generator")
        else:
            frame.push(sent)
        self.started = True
        return self._run(tracer, frame)

    def _run(self, tracer: Tracer, frame: Frame, thrown: Observed | None = None) -> Value:
        if self.running:
            tracer.throw(ValueError, "generator already executing")
        self.running = True
        try:
            if thrown is not None:
                frame.throw_in(thrown)
            signal = frame.run()
        except Observed as observed:
            self.frame = None
            if issubclass(observed.value.python_type(), StopIteration):
                raise Observed(
                    new_exception(tracer, RuntimeError, ["generator raised StopIteration"])
                ) from None
            raise
        finally:
            self.running = False
        assert frame.result is not None
        if signal is Signal.YIELD:
            return frame.result
        self.frame = None
        result = frame.result.realize()
        if isinstance(result, ConstantValue) and result.content is None:
            tracer.throw(StopIteration)
        tracer.throw(StopIteration, result)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.objects import class_attribute

        return class_attribute(tracer, self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__next__":
            return self.next(tracer)
        if name == "__iter__":
            return self
        if name == "send":
            return self.resume(tracer, args[0].realize())
        if name == "throw":
            return self._throw(tracer, args)
        if name == "close":
            return self._close(tracer)
        return super().call_method(tracer, name, args, kwargs)

    def _throw(self, tracer: Tracer, args: Args) -> Value:
        from bothways.capture.opcodes.exceptions import as_exception

        given = args[1] if len(args) > 1 else args[0]
        raised = as_exception(tracer.frames[-1], given)
        frame, self.started = self.frame, True
        if frame is None:
            raise Observed(raised)
        if frame.index == 0:
            self.frame = None
            raise Observed(raised)
        return self._run(tracer, frame, Observed(raised))

    def _close(self, tracer: Tracer) -> Value:
        if self.frame is not None and self.started:
            try:
                self._throw(tracer, [protocols.call(tracer, _class(tracer, GeneratorExit), [])])
            except Observed as observed:
                if not issubclass(observed.value.python_type(), (GeneratorExit, StopIteration)):
                    raise
            else:
                tracer.throw(RuntimeError, "generator ignored GeneratorExit")
        self.frame = None
        return ConstantValue(None)

    def rebuild(self, emitter: Emitter) -> str:
        emitter.tracer.stop("generator_escapes", "a generator leaves the function before it is consumed")


def _class(tracer: Tracer, cls: type) -> Value:
    from bothways.capture.values.classes import ClassValue

    return ClassValue.of(tracer, cls)
