"""The tables of rules, and which rule answers an operation.

A row is named after an operation, or one overload of it, and is a function of the operation's own arguments. It
returns ``Spec`` for a new tensor, which is then made where the arguments are, or thin tensors it made itself. What it
is not sure of raises ``NotThin``: a rule is right or absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.fake.promotion import fits_into
from bothways.fake.rules import (
    attention,
    convolution,
    factories,
    images,
    indexing,
    joining,
    losses,
    normalization,
    pointwise,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    updates,
    views,
)
from bothways.fake.tensor import NotThin, Spec, ThinTensor, restride
from bothways.ops import SHAPE_RULES

Rule = Callable[..., Any]

for _module in (
    attention, convolution, factories, images, indexing, joining, losses, normalization, pointwise, pooling, products,
    random, recurrent, reductions, updates, views,
):  # fmt: skip
    SHAPE_RULES.update(_module.RULES)


def rule_for(operation: Any) -> Rule | None:
    """The rule for an overload: its own, its family's, or one made from that of the functional form."""
    namespace, _, full = operation.name().partition("::")
    name, _, overload = full.partition(".")
    if namespace != "aten":
        return None
    outputs = [argument for argument in torch_compat.schema_of(operation).arguments if argument.is_out]
    if outputs:
        base = ops.named(f"{name}.{overload.removesuffix('out').rstrip('_') or 'default'}").shape_rule
        return None if base is None or len(outputs) > 1 else into(base, outputs[0].name)
    known = ops.of(operation)
    if known.shape_rule is not None:
        return known.shape_rule
    if name.startswith("_foreach_"):
        return _foreach(name.removeprefix("_foreach_"))
    if name.endswith("_"):
        renamed = known.functional if "." in known.functional else f"{known.functional}.{overload or 'default'}"
        base = ops.named(renamed).shape_rule
        if base is not None:
            return in_place(base)
    return None


def in_place(base: Rule) -> Rule:
    """The functional form says what would come out: a view to become, or what has to fit into the first argument."""

    def in_place_rule(target: ThinTensor, *args: Any, **kwargs: Any) -> ThinTensor:
        result = base(target, *args, **kwargs)
        if type(result) is ThinTensor and result.memory is target.memory and result.dtype is target.dtype:
            return restride(target, result)
        if type(result) is Spec and result.shape != tuple(target.shape):  # which meta kernels and tracing let pass
            own, others = (", ".join(map(str, shape)) for shape in (target.shape, result.shape))
            raise RuntimeError(f"output with shape [{own}] doesn't match the broadcast shape [{others}]")
        return check_fits(result, target)

    return in_place_rule


def into(base: Rule, name: str) -> Rule:
    def into_rule(*args: Any, **kwargs: Any) -> ThinTensor:
        target = kwargs.pop(name)
        return check_fits(base(*args, **kwargs), target)

    return into_rule


def check_fits(result: Any, target: Any) -> ThinTensor:
    if type(result) is not Spec or type(target) is not ThinTensor or result.shape != tuple(target.shape):
        raise NotThin("a result that does not fit where it is written")
    if not fits_into(result.dtype, target.dtype):
        raise NotThin(f"{result.dtype} is not written into {target.dtype}")
    if any(size > 1 and not step for size, step in zip(target.shape, target.stride(), strict=True)):
        raise NotThin("an expanded tensor is written to")
    return target


def _foreach(name: str) -> Rule | None:
    """An operation on lists is its element's operation on each."""
    writes = name.endswith("_")
    base = SHAPE_RULES.get(f"{name.rstrip('_')}.foreach") or SHAPE_RULES.get(name.rstrip("_"))
    if base is None:
        return None

    def foreach(tensors: list[ThinTensor], *args: Any, **kwargs: Any) -> Any:
        results = []
        for index, tensor in enumerate(tensors):
            own = [arg[index] if isinstance(arg, (list, tuple)) else arg for arg in args]
            result = base(tensor, *own, **kwargs)
            if writes:
                check_fits(result, tensor)
            results.append((result, tensor.device))
        return None if writes else ForEach(results)

    return foreach


class ForEach(list[tuple[Any, torch.device]]):
    """New tensors, each with the device it is made on."""
