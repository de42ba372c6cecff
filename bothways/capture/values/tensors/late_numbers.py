"""A number that is read from a tensor and only handed on: it is read when the graph has run.

``return loss.item()``, ``total += float(loss)`` and ``round(loss.item() / 4, 3)`` need no break: the program reads the
number behind the graph, and works out there what cannot fail, or what the graph makes sure of. What has to know it, a
decision or an operation, stops the capture at its own line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.moments import TensorMoment, act_at, acting_after, result_of
from bothways.capture.values.tensors.tensor_attributes import STOPS
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import in_graphs
from bothways.runtime.nodes import Applied, require_number
from bothways.symbols.environment import COMPARISONS

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

# What is worked out behind the graph: it cannot fail.
ARITHMETIC = frozenset("+ - *".split())
QUOTIENTS = frozenset("/ // %".split())  # nor can these by what is not zero
DEEPEST = 40  # steps of one expression, before it gets a name: Python's parser has a limit
LARGEST_POWER = 8  # whose base can be asked whether the power is one that a float holds
UNARY = {"__neg__": "-", "__pos__": "+", "__abs__": "abs"}
METHODS = frozenset({"__int__", "__float__", "__round__"})
WHOLE_METHODS = {"__int__": "int", "__round__": "round"}  # which fail for what is no number, or infinite
# Functions that fail for some numbers, with the question whose answer is no for all others.
PARTIAL: dict[Any, tuple[str, float]] = {
    math.exp: (">", 709.0),
    math.expm1: (">", 709.0),
    math.sqrt: ("<", 0.0),
    **dict.fromkeys((math.log, math.log2, math.log10), ("<=", 0.0)),
}
# Functions that make whole numbers of those that are finite.
WHOLE = frozenset({math.floor, math.ceil, math.trunc})
# Functions that ask whether a number is one -> what they mostly say.
FINITE: dict[Any, bool] = {math.isfinite: True, math.isnan: False, math.isinf: False}
REFLECTED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


class LateNumber(Value):
    """A number that is not known before the graph has run."""

    told_later = True

    def __init__(self, tracer: Tracer, *kinds: type, operands: Sequence[Value] = ()) -> None:
        self._tracer, self.kinds = tracer, kinds  # of several, data decides
        self._operands = operands
        self._depth: int = 1 + max((value._depth for value in operands if isinstance(value, LateNumber)), default=0)

    def parts(self) -> Iterable[Value]:
        return self._operands

    def _named(self, emitter: Emitter, expression: str) -> str:
        """The expression, or the name of its result where it is long."""
        return expression if self._depth % DEEPEST else emitter.built(self, expression)

    def python_type(self) -> type:
        if len(self.kinds) > 1:
            self._stop()
        return self.kinds[0]

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
        kind = self.python_type()
        if name == f"__{kind.__name__}__":
            return self
        if name == "__float__" or (name == "__int__" and kind is bool):
            return LateCall(tracer, float if name == "__float__" else int, name.strip("_"), [self])
        if name == "__round__" and kind is float and args and _is_whole(args[0]):
            return LateCall(tracer, float, "round", [self, args[0].realize()])
        if name in WHOLE_METHODS and kind is float and not args and self.require("isfinite", (), True):
            return LateCall(tracer, int, WHOLE_METHODS[name], [self])
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
        kind = self.python_type()
        return LateCall(tracer, int if kind is bool else kind, UNARY[method], [self])

    def _stop(self) -> NoReturn:
        self._tracer.stop(*STOPS["item"])

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol in COMPARISONS:
            return self._compared(tracer, REFLECTED[op.symbol] if reflected else op.symbol, other)
        symbol = op.symbol.removesuffix("=")
        plain = isinstance(other, ConstantValue) and type(other.content) in (int, float)
        changes = isinstance(other, NumberValue) and other.python_type() in (int, float)
        if not (plain or changes or isinstance(other, LateNumber)):
            self._stop()
        left, right = (other, self) if reflected else (self, other)
        if symbol not in ARITHMETIC and not _has_answer(tracer, symbol, left, right):
            self._stop()
        kind = float if symbol == "/" or float in (self.python_type(), other.python_type()) else int
        return LateSum(tracer, kind, symbol, [left, right])

    def _compared(self, tracer: Tracer, symbol: str, other: Value) -> Value:
        if not isinstance(other, ConstantValue) or type(other.content) not in (int, float) or other.source is not None:
            self._stop()  # a number of the user's may be another one next time, which plain Python need not be told
        return LateTruth(tracer, symbol, self, [other])

    def require(
        self, question: str, others: tuple[float, ...], wanted: bool, applied: tuple[Applied, ...] = ()
    ) -> bool:
        """Let the graph fail unless the answer to a question about the number, or what comes of it by what is
        ``applied``, is the wanted one; False where it cannot be asked."""
        return False

    def name_hint(self) -> str:
        return "number"


class ReadNumber(LateNumber):
    """``tensor.item()``, of the tensor as it was then."""

    method = "item"

    def __init__(self, tracer: Tracer, kind: type, tensor: TensorValue) -> None:
        super().__init__(tracer, kind)
        self._moment = TensorMoment.now(tracer, tensor)

    def parts(self) -> Iterable[Value]:
        return [self._moment.tensor]

    def require(
        self, question: str, others: tuple[float, ...], wanted: bool, applied: tuple[Applied, ...] = ()
    ) -> bool:
        tracer = self._tracer
        if not tracer.options.assumes or tracer.symbols.only_looks or tracer.overrides.heeds_modes:
            return False
        tracer.graph.rely_on_data()
        # Where the tensor is as it was read: nothing that is changed later has to be put back.
        with acting_after(tracer, self._moment.last) as graph:
            graph.call_function(require_number, (self._moment.node, applied, question, others, wanted))
        return True

    def rebuild(self, emitter: Emitter) -> str:
        has_passed = self._moment.has_passed(emitter.tracer)
        if self._moment.is_input and not has_passed:
            tensor = emitter.rebuild(self._moment.tensor)
        else:
            keep = _copied if has_passed else torch.Tensor.detach
            node = act_at(emitter.tracer, (self._moment,), self._moment.last, keep)
            node.meta["example_value"] = self._moment.tensor.fake.outline()
            tensor = result_of(emitter, node, "read")
        # Python that runs at a break may change the tensor, and the number is wanted behind it.
        return emitter.built(self, f"{tensor}.{self.method}()")


class ReadTruth(ReadNumber):
    """``tensor.item()`` or ``bool(tensor)`` of a tensor of truths."""

    def __init__(self, tracer: Tracer, tensor: TensorValue) -> None:
        super().__init__(tracer, bool, tensor)

    @property
    def asked(self) -> TensorValue:
        """The tensor that a decision asks instead."""
        if self._moment.has_passed(self._tracer):
            self._stop()
        return self._moment.tensor

    def truth(self, tracer: Tracer) -> bool:
        return self.asked.truth(tracer)


class LateSum(LateNumber):
    """What is computed from such numbers."""

    def __init__(self, tracer: Tracer, kind: type, symbol: str, operands: list[Value]) -> None:
        super().__init__(tracer, kind, operands=operands)
        self._symbol = symbol

    def require(
        self, question: str, others: tuple[float, ...], wanted: bool, applied: tuple[Applied, ...] = ()
    ) -> bool:
        left, right = self._operands
        is_left = isinstance(left, ConstantValue)
        number, other = (right, left) if is_left else (left, right)
        if not isinstance(number, LateNumber) or not isinstance(other, ConstantValue):
            return False
        return number.require(question, others, wanted, ((self._symbol, other.constant(), is_left), *applied))

    def rebuild(self, emitter: Emitter) -> str:
        left, right = (emitter.rebuild(operand) for operand in self._operands)
        return self._named(emitter, f"({left} {self._symbol} {right})")


class LateCall(LateNumber):
    """What a function of Python's makes of such a number."""

    def __init__(self, tracer: Tracer, kind: type, function: str, operands: list[Value]) -> None:
        super().__init__(tracer, kind, operands=operands)
        self._function = function

    def rebuild(self, emitter: Emitter) -> str:
        return self._named(emitter, f"{self._function}({emitter.rebuild_all(self._operands)})")


class LateTruth(LateNumber):
    """A comparison of such a number, or whether it is one."""

    def __init__(self, tracer: Tracer, question: str, number: LateNumber, others: list[Value]) -> None:
        super().__init__(tracer, bool, operands=[number, *others])
        self._question, self._number, self._others = question, number, others

    def describe(self) -> str:
        return "a question about a number that is read from a tensor"

    def assume(self, tracer: Tracer, wanted: bool) -> bool:
        """Go on as if the answer were the wanted one; False where the graph cannot make sure of it."""
        others = tuple(other.constant() for other in self._others)
        return self._number.require(self._question, others, wanted)

    def truth(self, tracer: Tracer) -> bool:
        usual = ANSWERS.get(self._question)
        if usual is None or not tracer.options.fullgraph or not self.assume(tracer, usual):
            self._stop()
        return usual

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        self._stop()

    def unary(self, tracer: Tracer, function: Any, method: str) -> Value:
        self._stop()

    def call_method(self, tracer: Tracer, name: str, args: Any, kwargs: Any) -> Value:
        self._stop()

    def rebuild(self, emitter: Emitter) -> str:
        operands = [emitter.rebuild(operand) for operand in (self._number, *self._others)]
        if len(operands) == 2:
            return f"({operands[0]} {self._question} {operands[1]})"
        return f"{emitter.inject(getattr(math, self._question), self._question)}({operands[0]})"

    def name_hint(self) -> str:
        return "truth"


class LateResult(LateCall):
    """What a function of ``math`` makes of such a number, for which the graph makes sure that it does not fail."""

    def __init__(self, tracer: Tracer, function: Any, number: LateNumber, kind: type = float) -> None:
        super().__init__(tracer, kind, function.__name__, [number])
        self._called = function

    def rebuild(self, emitter: Emitter) -> str:
        called = emitter.inject(self._called, self._function)
        return self._named(emitter, f"{called}({emitter.rebuild_all(self._operands)})")


ANSWERS = {function.__name__: usual for function, usual in FINITE.items()}


def late_math(tracer: Tracer, function: Any, args: list[Value]) -> Value | None:
    """What a function of ``math`` gives for a number that is read behind the graph; None where that has to be known."""
    number = args[0]
    if len(args) != 1 or not isinstance(number, LateNumber) or float not in number.kinds:
        return None
    if function in FINITE:
        return LateTruth(tracer, function.__name__, number, [])
    if function in WHOLE and number.require("isfinite", (), True):
        return LateResult(tracer, function, number, int)
    if function not in PARTIAL:
        return None
    question, other = PARTIAL[function]
    return LateResult(tracer, function, number) if number.require(question, (other,), False) else None


def late_truth(tracer: Tracer, value: Value) -> Value | None:
    """``bool()`` of what is read behind the graph; None for all else."""
    if isinstance(value, TensorValue) and value.is_single and not tracer.overrides.may_apply_to([value]):
        value = linked.protocols.call_attr(tracer, value, "item").realize()
    if not isinstance(value, LateNumber):
        return None
    return value if bool in value.kinds else LateTruth(tracer, "!=", value, [ConstantValue(0)])


def _has_answer(tracer: Tracer, symbol: str, left: Value, right: Value) -> bool:
    """Whether a quotient or a power is a number, for which the graph makes sure where data decides."""
    if symbol in QUOTIENTS:
        if isinstance(right, LateNumber):
            return right.require("==", (0,), False)
        return right.truth(tracer)
    power: Any = right.content if symbol == "**" and isinstance(right, ConstantValue) else None
    if not isinstance(left, LateNumber) or type(power) not in (int, float) or not 0 < power <= LARGEST_POWER:
        return False
    if type(power) is float:
        return power <= 1 and left.require("<", (0,), False)
    bound = sys.float_info.max ** (1 / power) * 0.99
    whole = left.python_type() is int
    return whole or all(left.require(symbol, (limit,), False) for symbol, limit in ((">", bound), ("<", -bound)))


def _is_whole(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, ConstantValue) and type(value.content) is int


@in_graphs(detaches=True)
def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A number that is changed later, as it is now."""
    return tensor.detach().clone()
