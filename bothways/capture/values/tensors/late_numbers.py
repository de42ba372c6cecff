"""A number that is read from a tensor and only handed on: it is read when the graph has run.

``return loss.item()``, ``total += float(loss)`` and ``round(loss.item() / 4, 3)`` need no break: the program reads the
number behind the graph, and works out there what cannot fail. What has to know it, a decision or an operation, stops
the capture at its own line.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.moments import TensorMoment, act_at, result_of
from bothways.capture.values.tensors.tensors import STOPS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

# What is worked out behind the graph: it cannot fail.
ARITHMETIC = frozenset("+ - *".split())
UNARY = {"__neg__": "-", "__pos__": "+", "__abs__": "abs"}
METHODS = frozenset({"__int__", "__float__", "__round__"})


class LateNumber(Value):
    """A number that is not known before the graph has run."""

    def __init__(self, tracer: Tracer, kind: type) -> None:
        self._tracer, self._kind = tracer, kind

    def python_type(self) -> type:
        return self._kind

    def describe(self) -> str:
        return "a number that is read from a tensor"

    def constant(self) -> Any:
        self._stop()

    def hash_key(self, tracer: Tracer) -> Hashable:
        self._stop()

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in METHODS:
            return linked.BoundBuiltin(self, name)
        self._stop()

    def call_method(self, tracer: Tracer, name: str, args: Any, kwargs: Any) -> Value:
        if name == f"__{self._kind.__name__}__":
            return self
        if name == "__float__":
            return LateCall(tracer, float, "float", [self])
        if name == "__round__" and self._kind is float and args and _is_whole(args[0]):
            return LateCall(tracer, float, "round", [self, args[0].realize()])
        self._stop()

    def truth(self, tracer: Tracer) -> bool:
        self._stop()

    def text(self, tracer: Tracer, conversion: str) -> str:
        self._stop()

    def format(self, tracer: Tracer, spec: str) -> str | None:
        self._stop()

    def unary(self, tracer: Tracer, function: Any, method: str) -> Value:
        if method not in UNARY:
            self._stop()
        return LateCall(tracer, self._kind, UNARY[method], [self])

    def _stop(self) -> NoReturn:
        self._tracer.stop(*STOPS["item"])

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        symbol = op.symbol.removesuffix("=")
        plain = isinstance(other, ConstantValue) and type(other.content) in (int, float)
        if not (plain or isinstance(other, (LateNumber, NumberValue))):
            self._stop()
        divides = symbol == "/" and not reflected and not isinstance(other, LateNumber) and other.truth(tracer)
        if symbol not in ARITHMETIC and not divides:
            self._stop()
        kind = float if divides or float in (self._kind, other.python_type()) else int
        return LateSum(tracer, kind, symbol, [other, self] if reflected else [self, other])

    def name_hint(self) -> str:
        return "number"


class ReadNumber(LateNumber):
    """``tensor.item()``, of the tensor as it was then."""

    def __init__(self, tracer: Tracer, kind: type, tensor: TensorValue) -> None:
        super().__init__(tracer, kind)
        self._moment = TensorMoment.now(tracer, tensor)

    def parts(self) -> Iterable[Value]:
        return [self._moment.tensor]

    def rebuild(self, emitter: Emitter) -> str:
        has_passed = self._moment.has_passed(emitter.tracer)
        if self._moment.is_input and not has_passed:
            return f"{emitter.rebuild(self._moment.tensor)}.item()"
        keep = _copied if has_passed else torch.Tensor.detach
        node = act_at(emitter.tracer, (self._moment,), self._moment.last, keep)
        node.meta["example_value"] = self._moment.tensor.fake.outline()
        return f"{result_of(emitter, node, 'read')}.item()"


class LateSum(LateNumber):
    """What is computed from such numbers."""

    def __init__(self, tracer: Tracer, kind: type, symbol: str, operands: list[Value]) -> None:
        super().__init__(tracer, kind)
        self._symbol, self._operands = symbol, operands

    def parts(self) -> Iterable[Value]:
        return self._operands

    def rebuild(self, emitter: Emitter) -> str:
        left, right = (emitter.rebuild(operand) for operand in self._operands)
        return f"({left} {self._symbol} {right})"


class LateCall(LateNumber):
    """What a function of Python's makes of such a number."""

    def __init__(self, tracer: Tracer, kind: type, function: str, operands: list[Value]) -> None:
        super().__init__(tracer, kind)
        self._function, self._operands = function, operands

    def parts(self) -> Iterable[Value]:
        return self._operands

    def rebuild(self, emitter: Emitter) -> str:
        return f"{self._function}({emitter.rebuild_all(self._operands)})"


def _is_whole(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, ConstantValue) and type(value.content) is int


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A number that is changed later, as it is now."""
    return tensor.detach().clone()
