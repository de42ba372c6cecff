"""``tensor.numpy()`` that is only handed on: ``outputs.append(out.detach().cpu().numpy())``.

The array shares the tensor's memory, so the program makes it when its graph has run: of the tensor itself, or of a view
from that moment, since a tensor can be transposed, get other memory, or ask for a gradient afterwards. What looks at
the array stops the capture there: NumPy's functions run as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.overrides.overrides import PLAIN_CLASSES
from bothways.capture.values.core import numpy_numbers
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.tensors.moments import TensorMoment, act_at, result_of
from bothways.capture.values.tensors.tensor_attributes import STOPS
from bothways.capture.values.tensors.tensors import SPECIAL_METHODS, TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# What NumPy has a dtype for, and no bit of the tensor says that it is another number than its memory.
DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
})  # fmt: skip


class LateArray(Value):
    """An array of NumPy's over the memory of a tensor."""

    def __init__(self, tracer: Tracer, tensor: TensorValue) -> None:
        self._tracer, self._moment = tracer, TensorMoment.now(tracer, tensor)
        self._outline = tensor.fake.outline()

    def python_type(self) -> type:
        assert numpy_numbers.ARRAY is not None
        return numpy_numbers.ARRAY

    def describe(self) -> str:
        return "an array of NumPy's"

    def constant(self) -> Any:
        raise NotConstant(self.describe())

    def _looked_at(self, *args: Any, **kwargs: Any) -> Any:
        self._tracer.stop(*STOPS["numpy"])

    get_attr = set_attr = call_method = get_item = set_item = del_item = iterate = length = _looked_at
    truth = contains = binary = unary = format = text = hash_key = _looked_at

    def parts(self) -> Iterable[Value]:
        return [self._moment.tensor]

    def name_hint(self) -> str:
        return "array"

    def rebuild(self, emitter: Emitter) -> str:
        moment = self._moment
        if moment.has_passed(emitter.tracer):
            node = act_at(emitter.tracer, (moment,), moment.last, torch.Tensor.detach)
            node.meta["example_value"] = self._outline
            tensor = result_of(emitter, node, "seen")
        else:
            tensor = emitter.rebuild(moment.tensor)
        return emitter.built(self, f"{tensor}.numpy()")


def _numpy(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    fake = tensor.fake
    is_plain = tensor.cls in PLAIN_CLASSES and not tracer.overrides.heeds_modes and not tracer.symbols.only_looks
    shares = fake.device.type == "cpu" and fake.dtype in DTYPES and not fake.requires_grad
    if args or kwargs or not is_plain or not shares or numpy_numbers.ARRAY is None:
        tracer.stop(*STOPS["numpy"])
    return LateArray(tracer, tensor)


SPECIAL_METHODS["numpy"] = _numpy
