"""What captured code does to a tensor itself: its ``grad``, whether it requires one, a Parameter made of it.

A gradient is an attribute that is stored after the graph. To ask for gradients makes a leaf, which is a node that
autograd sees where it stands, because what follows is differentiated with respect to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import ops
from bothways.capture.shapes.fakes import with_data_of
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.tensors import SETTERS, SPECIAL_METHODS, TensorValue
from bothways.runtime.nodes import set_data_

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def _set_grad(tracer: Tracer, tensor: TensorValue, value: Value) -> None:
    """``tensor.grad = value``, where eager would not object."""
    content = value.realize()
    if not tensor.fake.meta.is_leaf:
        tracer.stop("mutation_unknown", "the grad of a tensor that is no leaf is set")
    if isinstance(content, TensorValue):
        mine, other = tensor.fake, content.fake
        if (mine.shape, mine.dtype, mine.device) != (other.shape, other.dtype, other.device) or content is tensor:
            tracer.stop("mutation_unknown", "a tensor's grad is set to a tensor that does not fit")
    elif not isinstance(content, ConstantValue) or content.content is not None:
        tracer.stop("mutation_unknown", f"a tensor's grad is set to {content.describe()}")
    elif tensor.source is not None and _is_first_said(tracer, tensor):
        tracer.effects.forget(tensor)
    tensor.store(tracer, "grad", content)


def _is_first_said(tracer: Tracer, tensor: TensorValue) -> bool:
    """Whether the caller cannot tell that the gradient from outside goes before the graph runs, not in its middle."""
    is_first = "grad" not in tensor.attrs and not tensor.asked_for_grad
    return is_first and not tracer.graph.may_fail and not tracer.graph.has_effects


def _require_grad(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """``tensor.requires_grad_(wanted)``."""
    arguments = [*args, *kwargs.values()]
    wanted = protocols.as_constant(tracer, arguments[0]) if arguments else True
    if type(wanted) is not bool or len(arguments) > 1 or not {"requires_grad"}.issuperset(kwargs):
        tracer.stop("mutation_unknown", "requires_grad_ is given something that is no bool")
    if tensor.fake.requires_grad == wanted:
        return tensor
    result = tracer.graph.op(
        "call_method", "requires_grad_", torch.Tensor.requires_grad_, [tensor, ConstantValue(wanted)], {}
    )
    if tensor.source is not None:  # a graph that is traced does it to a stand-in
        tensor.store(tracer, "requires_grad", ConstantValue(wanted))
    return result


def _set_requires_grad(tracer: Tracer, tensor: TensorValue, value: Value) -> None:
    _require_grad(tracer, tensor, [value], {})


def _set_data(tracer: Tracer, tensor: TensorValue, value: Value) -> None:
    """``tensor.data = value``: the tensor takes over the other's memory, sizes and strides."""
    content = value.realize()
    if not isinstance(content, TensorValue) or not tensor.fake.meta.is_leaf:
        tracer.stop("mutation_unknown", f"the data of a tensor is set to {content.describe()}")
    mine, other = tensor.fake, content.fake
    if (mine.dtype, mine.device) != (other.dtype, other.device) or mine.meta.grad is not None:
        tracer.stop("mutation_unknown", "the data of a tensor is set to data of another kind")
    if (mine.shape, mine.stride) == (other.shape, other.stride) and _is_data_of(content.node, tensor.node):
        return  # ``tensor.data /= 2`` sets what it has changed
    # What follows reads the tensor as this node gives it: an input is known by the sizes it came with.
    tensor.fake = with_data_of(mine, other)
    tensor.node = tracer.graph.call(set_data_, (tensor.node, content.node))
    tensor.node.meta["example_value"] = tensor.fake.outline()


def _is_data_of(node: torch.fx.Node, tensor: torch.fx.Node) -> bool:
    """Whether a node gives the ``.data`` of a tensor that is what it was when that was read, maybe changed in place."""
    while ops.of_node(node).writes_left and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node.target is getattr and node.args == (tensor, "data")


# Where the old-fashioned types of tensors are.
PACKAGES = {"cpu": "torch", "cuda": "torch.cuda"}


def _type(tracer: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """``tensor.type()``, the name of its old-fashioned type, and ``tensor.type(wanted)``, a conversion."""
    place = tensor.fake.device.type
    if not args and not kwargs and place in PACKAGES:
        name = torch.empty(0, dtype=tensor.fake.dtype, device="cpu").type()
        return ConstantValue(name.replace("torch", PACKAGES[place], 1))
    wanted = protocols.as_constant(tracer, args[0] if args else kwargs["dtype"]) if args or kwargs else None
    if place != "cpu" and not isinstance(wanted, torch.dtype):
        tracer.stop("call_unknown", "Tensor.type is asked of a tensor that is not on the CPU")
    dtype = wanted if isinstance(wanted, torch.dtype) else tracer.run_const(_dtype_of_type, wanted)
    if dtype is None:
        tracer.stop("call_unknown", f"Tensor.type moves a tensor to another device: {wanted}")
    return protocols.call_attr(tracer, tensor, "to", ConstantValue(dtype))


def _dtype_of_type(wanted: Any) -> torch.dtype | None:
    """None where that is a type of another device."""
    example = torch.empty(0, device="cpu").type(wanted)
    return example.dtype if example.device.type == "cpu" else None


SETTERS.update(grad=_set_grad, requires_grad=_set_requires_grad, data=_set_data)
SPECIAL_METHODS.update(requires_grad_=_require_grad, type=_type)


@handles(torch.nn.Parameter)
def _parameter(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    arguments = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data = arguments.get("data", ConstantValue(None)).realize()
    if not isinstance(data, TensorValue):
        tracer.stop("tensor_subclass", "a Parameter is made of something that is no tensor")
    wanted = arguments.get("requires_grad", ConstantValue(True))
    parameter = tracer.graph.op("call_function", torch.nn.Parameter, torch.nn.Parameter, [data, wanted], {})
    assert isinstance(parameter, TensorValue)
    parameter.cls = torch.nn.Parameter
    return parameter

