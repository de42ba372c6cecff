"""Optimizers' updates that are one operation of ATen's, as what they do: kernels are made of that.

Only on the CPU; elsewhere the operation stays one. Numbers that depend on a counter are tensors of doubles, as precise
as those ATen computes.
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


# With fewer bits ATen computes in more, and rounds at the end.
DTYPES = (torch.float32, torch.float64)

UPDATES: dict[Any, Callable[..., None]] = dict(
    zip(torch_compat.FUSED_UPDATES, (_adam(False), _adam(True), _sgd, _adagrad), strict=True)
)


def update_of(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], None] | None:
    """What an operation does, if it is such an update; with it, nothing else is left to be done."""
    update = UPDATES.get(target) if callable(target) else None
    if update is None or not all(isinstance(items, (list, tuple)) for items in args):
        return None
    named = dict(kwargs)
    tensors = [item for item in chain(*args, named.values()) if isinstance(item, torch.Tensor)]
    if not all(tensor.is_cpu and tensor.dtype in DTYPES for tensor in tensors):
        return None
    scale, found = named.pop("grad_scale", None), named.pop("found_inf", None)
    lists = args if ARE_COUNTED else [[item.data for item in items] for items in args]
    return lambda: _unless_found(found, lists, lambda: _unscaled(update, scale, lists, named))


def _unscaled(
    update: Callable[..., None], scale: torch.Tensor | None, lists: Sequence[Tensors], named: dict[str, Any]
) -> None:
    """The update by gradients of a scaled loss, which are those of the loss afterwards."""
    if scale is not None:
        for gradient in lists[1]:
            gradient.div_(scale.reshape(()))
    update(*lists, **named)


def _unless_found(found: torch.Tensor | None, lists: Sequence[Tensors], update: Callable[[], None]) -> None:
    """The update, but for what it changes where a gradient was infinite."""
    if found is None:
        return update()
    written = list(chain(*lists))
    before = [tensor.clone() for tensor in written]
    update()
    skipped = found.reshape(()) == 1
    for tensor, old in zip(written, before, strict=True):
        tensor.copy_(torch.where(skipped, old, tensor))


def _are_counted() -> bool:
    """Whether these operations give what they change another version; PyTorch's have no code for that."""
    param, grad = torch.zeros(2, 1, device="cpu").unbind()
    options: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.0, "dampening": 0.0}
    torch_compat.FUSED_UPDATES[2]([param], [grad], [], **options, nesterov=False, maximize=False, is_first_step=False)
    return param._version > 0


ARE_COUNTED = _are_counted()
