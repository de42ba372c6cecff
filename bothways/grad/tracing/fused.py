"""Optimizers' updates that are one operation of ATen's, as what they do: kernels are made of that.

Numbers that depend on a counter are tensors of doubles, as precise as those ATen computes; where memory has half
precision, what is computed has single, and is rounded at the end. Counters, rates and scales stay tensors where they
are some, on whichever device they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from bothways import torch_compat

Tensors = Sequence[torch.Tensor]
Number = torch.Tensor | float


def _adam(decoupled: bool) -> Callable[..., None]:
    def update(
        params: Tensors,
        grads: Tensors,
        averages: Tensors,
        squares: Tensors,
        largest: Tensors,
        steps: Tensors,
        *,
        lr: Number,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
    ) -> None:
        for index, (param, gradient, average, square, count) in enumerate(
            zip(params, grads, averages, squares, steps, strict=True)
        ):
            grad = -gradient if maximize else gradient
            step = count.double()
            if weight_decay != 0:
                if decoupled:
                    param.mul_(1 - _double(lr) * weight_decay)
                else:
                    grad = grad.add(param, alpha=weight_decay)
            average.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if amsgrad:
                largest[index].copy_(torch.maximum(largest[index], square))
            root = (largest[index] if amsgrad else square).sqrt() / (1 - beta2**step).sqrt()
            size = _double(lr) / (1 - beta1**step)
            param.addcdiv_(average * -size, root.add_(eps))

    return update


def _sgd(
    params: Tensors,
    grads: Tensors,
    buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    for index, (param, gradient) in enumerate(zip(params, grads, strict=True)):
        grad = -gradient if maximize else gradient
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if momentum != 0:
            buffer = buffers[index]
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        if isinstance(lr, torch.Tensor):
            param.sub_(grad * _double(lr))
        else:
            param.add_(grad, alpha=-lr)


def _adagrad(
    params: Tensors,
    grads: Tensors,
    sums: Tensors,
    steps: Tensors,
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    for param, gradient, total, count in zip(params, grads, sums, steps, strict=True):
        grad = -gradient if maximize else gradient
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        rate = _double(lr) / (1 + (count.double() - 1) * lr_decay)
        total.addcmul_(grad, grad)
        param.sub_(grad * rate / total.sqrt().add_(eps))


def _double(number: Number) -> Number:
    return number.double().reshape(()) if isinstance(number, torch.Tensor) else number


DTYPES = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)

# What an operation does, and which of its lists it changes; the second one is the gradients.
Update = tuple[Callable[..., None], tuple[int, ...]]
_ROWS: tuple[Update, ...] = (
    (_adam(False), (0, 2, 3, 4)),
    (_adam(True), (0, 2, 3, 4)),
    (_sgd, (0, 2)),
    (_adagrad, (0, 2)),
)
UPDATES: dict[Any, Update] = dict(zip(torch_compat.FUSED_UPDATES, _ROWS, strict=True))


def update_of(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], None] | None:
    """What an operation does, if it is such an update; with it, nothing else is left to be done."""
    update = UPDATES.get(target) if callable(target) else None
    if update is None or not all(isinstance(items, (list, tuple)) for items in args) or len(args) < 3:
        return None
    change, changes = update
    named = dict(kwargs)
    scale, found_inf = (named.pop(name, None) for name in ("grad_scale", "found_inf"))
    scalers = [value for value in (scale, found_inf) if value is not None]
    operands = list(chain(*args, scalers))
    tensors = [item for item in (*operands, *named.values()) if isinstance(item, torch.Tensor)]
    one = len({tensor.device for tensor in operands}) == 1 and operands[0].device.type in ("cpu", "cuda")
    if not one or not all(tensor.dtype in (*DTYPES, *HALVES) for tensor in tensors):
        return None
    in_half = any(tensor.dtype in HALVES for tensor in tensors)
    if in_half and change is _sgd and operands[0].is_cpu:
        return None  # there ATen reads memory that nothing was written to
    if scalers and change is _adagrad and not operands[0].is_cpu:
        return None  # there ATen leaves the gradients scaled, where all others take the scale out of them
    lists = args if ARE_COUNTED else [[item.data for item in items] for items in args]
    if not scalers and not in_half:
        return lambda: change(*lists, **named)
    return lambda: _update_copies(change, changes, lists, named, scale, found_inf)


def _update_copies(
    change: Callable[..., None],
    changes: Sequence[int],
    lists: Sequence[Tensors],
    named: dict[str, Any],
    scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
) -> None:
    """An update in the precision that ATen computes in, of gradients without the scale of a loss; nothing changes where
    one of them was found to be infinite."""
    copies = [[_precise(item) for item in items] for items in lists]
    if scale is not None:
        copies[1] = [grad / scale.to(grad.dtype).reshape(()) for grad in copies[1]]
        changes = (1, *changes)
    for place in changes:
        copies[place] = [item.clone() for item in copies[place]]
    change(*copies, **named)
    for item, new in ((item, new) for place in changes for item, new in zip(lists[place], copies[place], strict=True)):
        if found_inf is not None:
            new = torch.where(found_inf.reshape(()) == 1, _precise(item), new)
        item.copy_(new)


def _precise(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


def _are_counted() -> bool:
    """Whether these operations give what they change another version; PyTorch's have no code for that."""
    param, grad = torch.zeros(2, 1, device="cpu").unbind()
    options: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.0, "dampening": 0.0}
    torch_compat.FUSED_UPDATES[2]([param], [grad], [], **options, nesterov=False, maximize=False, is_first_step=False)
    return param._version > 0


ARE_COUNTED = _are_counted()
