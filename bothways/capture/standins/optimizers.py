"""What of ``torch.optim`` reads tensors into numbers, or keeps its distance from compilers, said with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat

Tensors = list[torch.Tensor]


def step_with_its_grad_mode(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An update is not differentiated unless the optimizer says so; PyTorch's own wrapper also breaks graphs."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return function(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    """``zero_grad()``; what is not read needs no guard, so it is the same program with gradients and without."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


# What PyTorch says where there is no tensor to group, as where no parameter has a gradient yet.
NO_TENSORS = (
    "Expected !nested_tensorlist[0].empty() to be true, but got false.  (Could this error message be improved?  If so, "
    "please report an enhancement request to PyTorch.)"
)


def grouped(
    lists: list[list[torch.Tensor | None]], with_indices: bool = False
) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[torch.Tensor | None]], list[int]]]:
    """Lists of tensors split up by device and dtype, which the first list says."""
    if not lists[0]:
        raise RuntimeError(NO_TENSORS)
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[torch.Tensor | None]], list[int]]] = {}
    for index, tensor in enumerate(lists[0]):
        if tensor is None:
            raise RuntimeError("a tensor of the first list is missing")
        key = tensor.device, tensor.dtype
        if key not in groups:
            groups[key] = [[] for _ in lists], []
        parts, indices = groups[key]
        for part, tensors in zip(parts, lists, strict=True):
            if len(tensors) > 0:
                part.append(tensors[index])
        if with_indices:
            indices.append(index)
    return groups


def adafactor(
    params: Tensors,
    grads: Tensors,
    row_vars: list[torch.Tensor | None],
    col_vars: list[torch.Tensor | None],
    variances: list[torch.Tensor | None],
    state_steps: Tensors,
    grad_scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
    *,
    d: float,
    lr: torch.Tensor | float,
    beta2_decay: float,
    weight_decay: float,
    eps1: float | None,
    eps2: float,
    maximize: bool,
    has_complex: bool,
) -> None:
    """Adafactor's update; the numbers that PyTorch's reads out of tensors stay in them, in double as in Python."""
    if grad_scale is not None or found_inf is not None:
        raise AssertionError("Grad scaling should occur outside of optimizer.step()")
    for param, gradient, row_var, col_var, variance, count in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        grad = -gradient if maximize else gradient
        smallest = torch.finfo(param.dtype).eps if eps1 is None else eps1
        count += 1
        step = count.double()
        weight = (step**beta2_decay).to(param.dtype)
        if isinstance(lr, torch.Tensor):
            rate = torch.minimum(lr.double().reshape(()), 1 / step.sqrt())
        else:
            rate = (1 / step.sqrt()).clamp(max=lr)
        alpha = _root_mean_square(param).clamp(min=eps2) * rate
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        if row_var is not None and col_var is not None:
            row_var.lerp_(_mean_square(grad, -1), weight)
            col_var.lerp_(_mean_square(grad, -2), weight)
            estimate = (row_var @ col_var) / row_var.mean(dim=-2, keepdim=True).clamp(min=smallest)
        else:
            if variance is None:
                raise AssertionError("variance should be defined when grad is a vector")
            variance.lerp_(grad * grad, weight)
            estimate = variance
        update = estimate.clamp(min=smallest * smallest).rsqrt() * grad
        denominator = (_root_mean_square(update) / d).clamp(min=1.0)
        param.add_((update * (-alpha / denominator)).to(param.dtype))


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    size: float = tensor.numel() ** 0.5
    return tensor.norm(2).double() / size


def _mean_square(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.norm(tensor, dim=dim, keepdim=True).square() / tensor.size(dim)


def radam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    beta1: float,
    beta2: float,
    lr: torch.Tensor | float,
    weight_decay: float,
    eps: float,
    decoupled_weight_decay: bool,
    differentiable: bool,
    maximize: bool,
    capturable: bool,
    has_complex: bool,
) -> None:
    """RAdam's update; which of two it is depends on a counter, and is chosen when it is computed."""
    rate = lr.reshape(()) if isinstance(lr, torch.Tensor) else lr
    longest = 2 / (1 - beta2) - 1
    for parameter, gradient, average, square, count in zip(
        *_as_real(params, grads, exp_avgs, exp_avg_sqs), state_steps, strict=True
    ):
        param, grad = parameter, -gradient if maximize else gradient
        count += 1
        step = count.double()
        if weight_decay != 0:
            if decoupled_weight_decay:
                param.mul_(1 - rate * weight_decay)
            else:
                grad = grad.add(param, alpha=weight_decay)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        first, second = 1 - beta1**step, 1 - beta2**step
        length = longest - 2 * step * (beta2**step) / second
        rectified = (
            (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        ) ** 0.5
        update = average / first * rate
        adapted = update * (square.sqrt().add_(eps).reciprocal() * second**0.5) * rectified
        param.add_(torch.where(length > 5.0, adapted, update), alpha=-1.0)


def asgd(
    params: Tensors,
    grads: Tensors,
    axs: Tensors,
    mus: Tensors,
    etas: Tensors,
    state_steps: Tensors,
    *,
    lambd: float,
    lr: torch.Tensor | float,
    t0: float,
    alpha: float,
    weight_decay: float,
    maximize: bool,
    differentiable: bool,
    capturable: bool,
    has_complex: bool,
) -> None:
    """ASGD's update, one parameter after the other; it begins to average at a step that a counter tells."""
    for parameter, gradient, average, mu, eta, count in zip(
        *_as_real(params, grads, axs), mus, etas, state_steps, strict=True
    ):
        param, grad = parameter, -gradient if maximize else gradient
        count += 1
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        factor = eta.double()
        param.mul_(1 - lambd * factor)
        param.sub_(grad * factor)
        average.copy_(torch.where(mu != 1, average + (param - average) * mu, param))
        _age(count.double(), mu, eta, lambd, lr, t0, alpha)


def asgd_together(
    params: Tensors,
    grads: Tensors,
    axs: Tensors,
    mus: Tensors,
    etas: Tensors,
    state_steps: Tensors,
    *,
    lambd: float,
    lr: torch.Tensor | float,
    t0: float,
    alpha: float,
    weight_decay: float,
    maximize: bool,
    differentiable: bool,
    capturable: bool,
    has_complex: bool,
) -> None:
    """The same with the roundings of the update of all parameters at once."""
    for param, gradient, average, mu, eta, count in zip(
        *_as_real(params, grads, axs), mus, etas, state_steps, strict=True
    ):
        grad = -gradient if maximize else gradient
        count += 1
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        param.addcmul_(grad.add(param, alpha=lambd), eta, value=-1)
        average.addcmul_(param - average, mu)
        _age(count, mu, eta, lambd, lr, t0, alpha)


def _age(
    step: torch.Tensor,
    mu: torch.Tensor,
    eta: torch.Tensor,
    lambd: float,
    lr: torch.Tensor | float,
    t0: float,
    alpha: float,
) -> None:
    rate = lr.reshape(()) if isinstance(lr, torch.Tensor) else lr
    eta.copy_(rate / ((1 + lambd * rate * step) ** alpha))
    mu.copy_(1 / (step.double() - t0).clamp(min=1))


def _as_real(*lists: Tensors) -> list[Tensors]:
    """Complex numbers as pairs of real ones."""
    return [[torch.view_as_real(item) if torch.is_complex(item) else item for item in items] for items in lists]


def as_list(numbers: Any) -> Any:
    """What eager does where PyTorch's compiler stacks numbers: nothing."""
    return numbers


def as_it_is_now(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor holds at this moment, for a call that is made later."""
    return tensor.detach().clone()


def is_false(condition: torch.Tensor) -> torch.Tensor:
    """Whether none of the elements is true."""
    return torch.logical_not(condition)


def is_finite(norm: torch.Tensor) -> torch.Tensor:
    """Whether a norm is a number, of which clipping may have been told to make sure."""
    return torch.logical_not(torch.logical_or(norm.isnan(), norm.isinf()))


def addcdiv_by_tensors(tensors: Tensors, numerators: Tensors, denominators: Tensors, values: Tensors) -> None:
    """``torch._foreach_addcdiv_`` by factors that are tensors; PyTorch's takes numbers."""
    for tensor, numerator, denominator, value in zip(tensors, numerators, denominators, values, strict=True):
        tensor.addcdiv_(numerator * value.to(numerator.dtype), denominator)


def lerp_by_tensor(tensors: Tensors, ends: Tensors, weight: torch.Tensor) -> Tensors:
    """``torch._foreach_lerp_`` by a weight that is a tensor; PyTorch's reads the number out of it."""
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight.to(tensor.dtype))
    return tensors


def lerp_without_counting(tensors: Tensors, ends: Tensors, weight: torch.Tensor) -> Tensors:
    """The same where PyTorch leaves versions as they are."""
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.data.lerp_(end, weight.to(tensor.dtype))
    return tensors


def powers_of_tensor(base: torch.Tensor, exponents: Tensors) -> Tensors:
    """``torch._foreach_pow`` of a base that is a tensor."""
    return [torch.pow(base.to(exponent.dtype), exponent) for exponent in exponents]


def value_of(number: Any) -> Any:
    """The number in a tensor, as a tensor in the precision that Python's numbers have."""
    return number.double() if isinstance(number, torch.Tensor) else number


STANDINS: dict[Any, Any] = {
    **dict.fromkeys(torch_compat.ADAFACTOR_UPDATES, adafactor),
    torch_compat.optimizer_value: value_of,
    torch_compat.stack_if_compiling: as_list,
}
