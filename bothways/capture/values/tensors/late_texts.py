"""Text with numbers that are not known yet, or change from call to call: ``f"step {step}: {loss.item():.3f}"``.

Text that is only handed on, stored, returned or logged, needs no break: the program makes it behind the graph, by
Python's own formatting. What has to know it, a key or a comparison, stops the capture at its own line; of numbers that
change, a function with ``fullgraph=True`` takes those of this call.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.late_numbers import LateNumber
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

# Numbers that formatting is tried with: where it takes all of a kind, it takes any. ``%d`` takes no infinity, and ``c``
# no number below nothing.
SAMPLES: dict[type, tuple[Any, ...]] = {
    float: (0.5, -0.0, math.inf, -math.inf, math.nan, 1e300),
    int: (1, -1, 0, 2**62),
    bool: (True, False),
    str: ("text", ""),
}
MOST_SAMPLES = sum(map(len, SAMPLES.values()))
PLAIN = (int, float, bool, str, type(None))
DEEPEST = 4  # what holds lists that hold lists is shown as far as this; further down it may hold itself


class LateText(Value):
    """What ``template.format(…)`` gives, or ``template % (…)``. A template that ``is_ours`` has a field without a name
    for each value, in order, and can be put behind another; one of the user's may count its fields, or leave some out.
    """

    def __init__(
        self, tracer: Tracer, template: str, args: Sequence[Value], method: str = "format", is_ours: bool = False
    ) -> None:
        self._tracer, self._template, self._args, self._method = tracer, template, list(args), method
        self.is_ours = is_ours

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return "a text with a number that changes"

    def parts(self) -> Iterable[Value]:
        return self._args

    def name_hint(self) -> str:
        return "text"

    def rebuild(self, emitter: Emitter) -> str:
        operands = [emitter.rebuild(arg) for arg in self._args]
        if self._method == "format":
            return f"{self._template!r}.format({', '.join(operands)})"
        return f"({self._template!r} % ({', '.join(operands)},))"

    # What has to know it.

    def constant(self) -> Any:
        contents = [arg.constant() for arg in self._args]
        if not self._tracer.options.fullgraph:  # a program for each number would be the price of a constant text
            self._tracer.stop("value_changes", "a number that is another one at each call is made a text")
        return made(self._template, self._method, contents)

    def _known(self) -> ConstantValue:
        return ConstantValue(self.constant())

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self._known().hash_key(tracer)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self._known().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return self._known().call_method(tracer, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self._known().get_item(tracer, key)

    def iterate(self, tracer: Tracer) -> Value:
        return self._known().iterate(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return self._known().truth(tracer)

    def length(self, tracer: Tracer) -> int:
        return self._known().length(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self._known().contains(tracer, item)

    def text(self, tracer: Tracer, conversion: str) -> str:
        return self._known().text(tracer, conversion)

    def format(self, tracer: Tracer, spec: str) -> str:
        return format(self.constant(), spec)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol.removesuffix("=") == "+" and other.python_type() is str:
            return joined(tracer, [other, self] if reflected else [self, other])
        known = other._known() if isinstance(other, LateText) else other
        left, right = (known, self._known()) if reflected else (self._known(), known)
        arithmetic = protocols.compare if op.symbol in protocols.COMPARE else protocols.binary
        return arithmetic(tracer, op.symbol, left, right)


def made(template: str, method: str, contents: Sequence[Any]) -> str:
    """The text of some numbers."""
    return template.format(*contents) if method == "format" else template % tuple(contents)


def formatted(tracer: Tracer, value: Value, spec: str) -> Value | None:
    """``format(value, spec)`` where the program has to work it out; None for all else."""
    if "{" in spec or "}" in spec:
        return None
    if isinstance(value, TensorValue):
        value = _number_in(tracer, value)
    if isinstance(value, LateText) and not spec:
        return value
    return late_text(tracer, f"{{:{spec}}}" if spec else "{}", [value], is_ours=True)


def shown(tracer: Tracer, value: Value, conversion: str) -> Value | None:
    """``str(value)`` or ``repr(value)``, as ``formatted``."""
    if isinstance(value, LateText) and conversion == "str":
        return value
    return late_text(tracer, "{!s}" if conversion == "str" else "{!r}", [value], is_ours=True)


def joined(tracer: Tracer, texts: Sequence[Value]) -> LateText:
    """Several texts as one."""
    template = ""
    args: list[Value] = []
    for text in texts:
        if isinstance(text, ConstantValue):
            template += str(text.content).replace("{", "{{").replace("}", "}}")
        elif isinstance(text, LateText) and text.is_ours:
            template, args = template + text._template, [*args, *text._args]
        else:
            template, args = template + "{}", [*args, text]
    return LateText(tracer, template, args, is_ours=True)


def late_text(
    tracer: Tracer, template: str, args: Sequence[Value], method: str = "format", is_ours: bool = False
) -> LateText | None:
    """A text that the program makes of some values; None where none of them is open, or one of them might refuse."""
    values = _all_as_now(tracer, args)
    if values is None or not any(map(_is_open, values)):
        return None
    for number in range(MOST_SAMPLES):
        try:
            made(template, method, [_sample(value, number) for value in values])
        except Exception:  # whatever Python has against it: it is said where the text is made
            return None
    return LateText(tracer, template, values, method, is_ours)


def _as_now(tracer: Tracer, value: Value, depth: int = 0) -> Value | None:
    """An operand whose text can be made later: a list or a dictionary, which may change until then, as a copy."""
    if _kinds(value) or _is_plain(value):
        return value
    kind = value.python_type()
    if depth == DEEPEST or not isinstance(value, (ListValue, TupleValue, DictValue)) or kind not in (list, tuple, dict):
        return None
    if isinstance(value, DictValue):
        entries = value.known_entries()
        keys = [entry.key.realize() for entry in entries]
        items = _all_as_now(tracer, [entry.value for entry in entries], depth + 1)
        if items is None or not all(map(_is_plain, keys)):
            return None
        return DictValue.from_pairs(tracer, zip(keys, items, strict=True))
    items = _all_as_now(tracer, value.look_at_all(tracer), depth + 1)
    if items is None:
        return None
    return ListValue(items) if kind is list else TupleValue(items)


def _all_as_now(tracer: Tracer, values: Sequence[Value], depth: int = 0) -> list[Value] | None:
    """Several of them; None where one cannot be shown later."""
    copies = [_as_now(tracer, value.realize(), depth) for value in values]
    known = [copy for copy in copies if copy is not None]
    return known if len(known) == len(copies) else None


def _sample(value: Value, number: int) -> Any:
    """One of the contents that a value may have."""
    samples = [sample for kind in _kinds(value) for sample in SAMPLES[kind]]
    if samples:
        return samples[number % len(samples)]
    if isinstance(value, DictValue):
        return {entry.key.constant(): _sample(entry.value, number) for entry in value.entries.values()}
    if isinstance(value, (ListValue, TupleValue)):
        return value.python_type()(_sample(item, number) for item in value.items)
    return value.constant()


def _number_in(tracer: Tracer, tensor: TensorValue) -> Value:
    """What ``Tensor.__format__`` formats: of one that holds a single number, that number."""
    if tensor.python_type() is not torch.Tensor or tensor.fake.meta.dim() or tracer.overrides.heeds_modes:
        return tensor
    return protocols.call_attr(tracer, tensor, "item").realize()


def _is_plain(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.content) in PLAIN


def _is_open(value: Value) -> bool:
    """Whether a text of this value is worked out by the program."""
    return bool(_kinds(value)) or any(_is_open(part) for part in value.parts())


def _kinds(value: Value) -> tuple[type, ...]:
    """The kinds that what is not known yet may be of; none for all else."""
    if isinstance(value, LateNumber):
        return value.kinds
    is_open = isinstance(value, LateText) or (isinstance(value, NumberValue) and value.python_type() in SAMPLES)
    return (value.python_type(),) if is_open else ()
