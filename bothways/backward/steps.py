"""What a captured backward does that is not one formula: hooks, checks, sums, accumulation, custom functions.

Programs call these with the user's own functions; they are plain Python that capture looks into. Each does what the
engine does in C++ at the same moment, with the engine's own errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.backward.formulas import convert, own_copy

# C++ counts dtypes; others than these are for the check in C++ to judge.
DTYPES: dict[int, torch.dtype] = dict(
    enumerate(
        [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
         torch.complex32, torch.complex64, torch.complex128, torch.bool]
    )
) | {15: torch.bfloat16}  # fmt: skip

Gradient = torch.Tensor | None

# What is to be called when the captured backward that runs is over; there is one at a time.
callbacks: list[Callable[[], None]] = []


def call_later(callback: Callable[[], None]) -> None:
    callbacks.append(callback)


def add(left: Gradient, right: Gradient) -> Gradient:
    """The sum of two gradients that reach one tensor."""
    if left is None:
        return right
    return left if right is None else left + right


def tensor_hook(hook: Callable[..., Any], grads: Sequence[Gradient], place: int) -> list[Gradient]:
    """A hook of one tensor."""
    gradients = list(grads)
    result = hook(gradients[place])
    if result is not None:
        gradients[place] = checked_result(hook, gradients[place], result)
    return gradients


def pre_hook(hook: Callable[..., Any], grads: Sequence[Gradient]) -> list[Gradient]:
    """A hook of a node, before it runs."""
    gradients = tuple(grads)
    result = hook(gradients)
    return list(gradients) if result is None else checked_results(hook, gradients, result)


def post_hook(hook: Callable[..., Any], results: Sequence[Gradient], grads: Sequence[Gradient]) -> list[Gradient]:
    """A hook of a node, after it ran."""
    gradients = tuple(results)
    result = hook(gradients, tuple(grads))
    return list(gradients) if result is None else checked_results(hook, gradients, result)


def leaf_hook(hook: Callable[..., Any], leaf: torch.Tensor) -> None:
    """A hook of a leaf, after its gradient was accumulated."""
    result = hook(leaf)
    if result is not None:
        checked_result(hook, leaf, result)
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def checked_results(hook: Any, before: Sequence[Gradient], after: Any) -> list[Gradient]:
    if not isinstance(after, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(after).__name__}'")
    if len(after) != len(before):
        raise RuntimeError(
            f"hook '{name_of(hook)}' has returned an incorrect number of values "
            f"(got {len(after)}, but expected {len(before)})"
        )
    return [checked_result(hook, old, new) for old, new in zip(before, after)]  # noqa: B905


def checked_result(hook: Any, before: Gradient, after: Any) -> Gradient:
    if after is None:
        return None
    if before is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(after, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(after).__name__}'")
    if before.dtype != after.dtype or before.device.type != after.device.type or before.layout != after.layout:
        raise RuntimeError(
            f"hook '{name_of(hook)}' has changed the type of value (was {before.type()} got {after.type()})"
        )
    if before.shape != after.shape:
        raise RuntimeError(f"hook '{name_of(hook)}' has changed the size of value")
    return after


def name_of(hook: Any) -> str:
    return getattr(hook, "__name__", "<unknown>")


def accumulate(leaf: torch.Tensor, grad: Gradient) -> Gradient:
    """Give a leaf its gradient, or add to what it has."""
    if grad is None:
        return leaf.grad
    old = leaf.grad
    if old is None:
        leaf.grad = own_copy(leaf, grad)
    elif torch.is_grad_enabled():
        leaf.grad = old + grad
    elif old.layout != torch.strided and grad.layout == torch.strided:
        leaf.grad = grad + old
    else:
        old.add_(grad)
    return leaf.grad


def begin_slices(grads: Sequence[Gradient], base: Any, view: Any) -> list[Gradient]:
    """A tensor was changed through a view: its gradient, and the part of it that the view is."""
    [grad] = grads
    if grad is None:
        return [None, None, None]
    whole = torch.empty_strided(base[0], base[1], dtype=grad.dtype, device=grad.device)
    whole.copy_(grad)
    part = whole.as_strided(view[0], view[1], view[2] - base[2])
    return [whole, part, part.clone()]


def end_slices(
    wanted: Sequence[bool], whole: Gradient, results: Sequence[Gradient], part: Gradient
) -> list[Gradient]:
    """Put what the change of the view gave in place of the part."""
    gradients: list[Gradient] = []
    for place, is_wanted in enumerate(wanted):
        result = results[place]
        if not is_wanted or result is None:
            gradients.append(None)
        elif place == 0:
            part.copy_(result)  # type: ignore[union-attr]
            gradients.append(whole)
        else:
            gradients.append(result)
    return gradients


def unpack(hook: Callable[..., Any], packed: Any) -> torch.Tensor:
    """What a saved tensor's own hook makes of what it was packed as."""
    tensor = hook(packed)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(tensor)}"
        )
    return tensor


def fits(grad: Gradient, wanted: Any) -> bool:
    """Whether a gradient is as it has to be; where that is not for certain, C++ makes it so or raises."""
    if grad is None or wanted is None:
        return True
    (_, _, device, _, layout, _), sizes, is_subclass, dtype = wanted
    return (
        type(grad) is torch.Tensor
        and not is_subclass
        and layout == 0
        and grad.layout == torch.strided
        and grad.device == device
        and grad.dtype == DTYPES.get(dtype)
        and grad.dim() == len(sizes)
        and all([have == want for have, want in zip(grad.shape, sizes)])  # noqa: B905, C419
    )


def check(grads: Sequence[Gradient], wanted: Sequence[Any]) -> list[Any]:
    """The gradients that a node gave, as those who get them need them."""
    gradients = list(grads)
    for grad, one in zip(gradients, wanted):  # noqa: B905
        if not fits(grad, one):
            converted: list[Any] = convert(gradients, wanted)
            return converted
    return [grad if one is not None else None for grad, one in zip(gradients, wanted)]  # noqa: B905
