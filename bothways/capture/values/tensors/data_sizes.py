"""Operations whose results are as long as data says: ``nonzero``, ``masked_select``, ``unique``, ``x[mask]``.

Where the configuration wants them in the graph, each is a node that runs as captured, and the length of what it gives
is a number that is not known before. Anything but the plain forms on the CPU stops the capture, as without. A mask that
is made of constants alone, as ``~torch.eye(n, dtype=torch.bool)``, says how many places there are before it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.shapes.fakes import Fake
from bothways.capture.shapes.shape_rules import Prediction, contiguous_stride
from bothways.capture.standins.masks import at_known_places
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS
from bothways.capture.values.tensors.known_data import known_data
from bothways.capture.values.tensors.tensors import INDICES, SPECIAL_METHODS, TensorValue
from bothways.capture.values.tensors.torch_functions import call_in_graph
from bothways.config import config

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# What comes out, given the arguments and the number: sizes, strides, dtype. None for arguments that are not for this.
Outline = tuple[tuple[Any, ...], tuple[Any, ...], torch.dtype]
Rule = Callable[..., Callable[[Any], Outline] | None]


def _nonzero(x: Fake) -> Callable[[Any], Outline]:
    # The kernel writes one row for each dimension, and gives the transposed.
    return lambda count: ((count, len(x.shape)), (1, count), torch.int64)


def _masked_select(x: Fake, mask: Fake) -> Callable[[Any], Outline]:
    return lambda count: ((count,), (1,), x.dtype)


def _unique(x: Fake) -> Callable[[Any], Outline] | None:
    return None if x.requires_grad else lambda count: ((count,), (1,), x.dtype)


def _index(x: Fake, mask: Fake) -> Callable[[Any], Outline] | None:
    dims = len(mask.shape)
    rest = x.shape[dims:]
    known = all(type(size) is int for size in x.shape) and x.is_contiguous
    if not dims or not known or mask.shape != x.shape[:dims]:
        return None
    return lambda count: ((count, *rest), contiguous_stride((1, *rest)), x.dtype)


RULES: dict[str, Rule] = {"nonzero": _nonzero, "argwhere": _nonzero, "masked_select": _masked_select, "unique": _unique}


def _recorded(tracer: Tracer, rule: Rule, call: str, target: Any, args: Args) -> Value | None:
    """The operation as a node, where it is wanted and its rule knows the arguments."""
    tensors = [arg.realize() for arg in args]
    if not config.sizes_from_data or tracer.symbols.only_looks or len(args) != rule.__code__.co_argcount:
        return None
    fakes = [value.fake for value in tensors if isinstance(value, TensorValue) and value.fake.device.type == "cpu"]
    outline = rule(*fakes) if len(fakes) == len(args) else None
    if outline is None:
        return None
    # Integers and masks have no gradient.
    grad = torch.is_grad_enabled() and fakes[0].requires_grad and rule is not _nonzero

    def fake(count: Any) -> Fake:
        shape, stride, dtype = outline(count)
        return Fake(None, fakes[0].device, Prediction(shape, stride, dtype, fakes[0].device, grad))

    return tracer.graph.counted(call, target, tensors, fake)


def _method(name: str, rule: Rule) -> Callable[[Tracer, TensorValue, Args, Kwargs], Value]:
    def method(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
        recorded = None if kwargs else _recorded(tracer, rule, "call_method", name, [tensor, *args])
        plain = getattr(torch.Tensor, name)
        return recorded or tracer.graph.op("call_method", name, plain, [tensor, *args], kwargs)

    return method


def _function(function: Any, rule: Rule) -> Callable[[Tracer, Args, Kwargs], Value]:
    usual_handler = HANDLERS.get(function)

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        recorded = None if kwargs else _recorded(tracer, rule, "call_function", function, args)
        if recorded is not None:
            return recorded
        if usual_handler is not None:
            return usual_handler(tracer, args, kwargs)
        return call_in_graph(tracer, function, args, kwargs)

    return handler


def _masked(tracer: Tracer, tensor: TensorValue, mask: TensorValue) -> Value | None:
    sizes = mask.fake.shape
    is_whole = bool(sizes) and sizes == tensor.fake.shape[: len(sizes)] and mask.fake.device == tensor.fake.device
    data = known_data(tracer, mask) if is_whole else None
    if data is not None:
        return tracer.inline(at_known_places, [tensor, mask, ConstantValue(int(data.sum()))], {})
    return _recorded(tracer, _index, "call_function", operator.getitem, [tensor, mask])


SPECIAL_METHODS.update({name: _method(name, rule) for name, rule in RULES.items()})
HANDLERS.update({getattr(torch, name): _function(getattr(torch, name), rule) for name, rule in RULES.items()})
INDICES[torch.bool] = _masked
