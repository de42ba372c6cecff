"""Convolutions of images that lie channel by channel are traced as convolutions of images that lie pixel by pixel.

PyTorch's convolutions on CPUs reorder the first kind before and after, and take the second as it is; everything between
two convolutions then lies like that, too. Outside it is not seen: results and gradients leave as they would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.fake.layout import is_channels_last, is_contiguous, suggested_format

aten = torch.ops.aten
BY_PIXEL = torch.channels_last

Change = Callable[..., Any]


class LayoutMatters(Exception):
    """The function does something that depends on how its tensors lie, so they stay as they are."""


class Layouts:
    """What one trace does in another way. ``expected`` are tensors laid out like the function's outputs.

    Who lays out images himself knows best: a function that is given such images is traced as it is.
    """

    def __init__(self, expected: Sequence[torch.Tensor | None]) -> None:
        self.is_used = False
        self._expected = expected
        self._turned: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._restorations: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._refused = self._permuted = False
        self._given: set[int] = set()
        self._changes: dict[Any, Change | None] = {
            aten.convolution.default: self._convolution,
            aten.convolution_backward.default: self._convolution_backward,
            aten.empty_like.default: self._empty_like,
            aten.as_strided.default: self._refuse,
        }

    def begin(self, inputs: Sequence[torch.Tensor]) -> None:
        """A trace of these inputs begins; there may be several, until everything about sizes is known."""
        self._turned.clear()
        self._restorations.clear()
        self._given = set(map(torch_compat.storage_identity, inputs))
        self._refused = any(lies_by_pixel(tensor) for tensor in inputs)

    def change_of(self, operation: Any) -> Change | None:
        """What is called in the place of an operation; None for most. It may give NotImplemented to decline."""
        if operation not in self._changes:
            known = ops.of(operation)
            self._changes[operation] = (
                self._permute if known.permutes else self._random(operation) if known.draws else None
            )
        return self._changes[operation]

    def restored(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs as the captured function lays them out."""
        if not self.is_used:
            return outputs
        if len(self._expected) != len(outputs):
            raise LayoutMatters
        return [self._restored(*pair, outputs) for pair in zip(outputs, self._expected, strict=True)]

    def end(self) -> None:
        """Raise when the trace that was made is not to be used."""
        if self.is_used and self._refused:
            raise LayoutMatters

    def _restored(self, output: Any, like: torch.Tensor | None, outputs: Sequence[Any]) -> Any:
        if not isinstance(output, torch.Tensor):
            return output
        lies = _inner(output)
        if like is not None and _lie_alike(lies, like) and _is_meant_alike(lies, like):
            return output
        memory = torch_compat.storage_identity(lies)
        others = (value for value in outputs if isinstance(value, torch.Tensor) and value is not output)
        is_shared = any(torch_compat.storage_identity(_inner(other)) == memory for other in others)
        restored = aten.clone.default(output, memory_format=torch.contiguous_format)
        if is_shared or output._is_view() or not _lie_alike(_inner(restored), like):
            raise LayoutMatters
        self._restorations.append((lies, _inner(restored)))
        return restored

    def stand_ins(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Images that lie pixel by pixel, each with the one that the captured function has in its place."""
        return [*((turned, own) for own, turned in self._turned.values()), *self._restorations]

    def restored_gradient(self, gradient: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """A gradient that lies like what it is for."""
        is_turned = self.is_used and not _is_meant_alike(_inner(gradient), _inner(source))
        return aten.clone.default(gradient, memory_format=torch.contiguous_format) if is_turned else gradient

    def _convolution(self, image: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
        if _is_transposed(others) and lies_by_pixel(image):  # its result may lie either way
            return aten.convolution.default(self._by_channel(image), weight, *others)
        if not _gains(image, weight, others):
            return NotImplemented
        return aten.convolution.default(self._by_pixel(image), weight, *others)

    def _convolution_backward(
        self, gradient: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, sizes: Any, *others: Any
    ) -> Any:
        turn: Callable[[torch.Tensor], torch.Tensor] | None
        if _is_transposed((None, *others)):
            turn = self._by_channel if lies_by_pixel(gradient) or lies_by_pixel(image) else None
        else:
            mixed = lies_by_pixel(image) and not lies_by_pixel(gradient)
            turn = self._by_pixel if mixed or _gains(image, weight, (None, *others)) else None
        if turn is None:
            return NotImplemented
        return aten.convolution_backward.default(turn(gradient), turn(image), weight, sizes, *others)

    def _random(self, operation: Any) -> Change:
        """Random numbers are drawn in the order in which memory lies: as the captured function's would."""

        def draw(*args: Any, **options: Any) -> Any:
            if not self._are_turned(args):
                return NotImplemented
            return operation(*map(self._by_channel, args), **options)

        return draw

    def _are_turned(self, args: Sequence[Any]) -> bool:
        """Whether one of these is an image that was turned; where that cannot be told, the trace is not used."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)] if self.is_used else []
        # A part of an image, or one in another shape, may lie pixel by pixel, too.
        unknown = any(not lies_by_pixel(tensor) and not tensor.is_contiguous() for tensor in tensors)
        self._refused |= bool(tensors) and (self._permuted or unknown)
        return any(map(lies_by_pixel, tensors))

    def _empty_like(self, tensor: torch.Tensor, **options: Any) -> Any:
        """Memory that will be filled, mostly with random numbers."""
        is_alike = options.get("memory_format") in (None, torch.preserve_format)
        if not is_alike or not self._are_turned([tensor]):
            return NotImplemented
        return aten.empty_like.default(tensor, **{**options, "memory_format": torch.contiguous_format})

    def _permute(self, tensor: torch.Tensor, *args: Any) -> Any:
        """The user's images may lie pixel by pixel from here on; a layer's matrix is none."""
        self._permuted |= tensor.dim() != 2 or torch_compat.storage_identity(tensor) not in self._given
        return NotImplemented

    def _refuse(self, *args: Any, **options: Any) -> Any:
        self._refused = True
        return NotImplemented

    def _by_pixel(self, tensor: torch.Tensor) -> torch.Tensor:
        self.is_used = True
        return tensor if _is_by_pixel(tensor) else self._turn(tensor, BY_PIXEL)

    def _by_channel(self, value: Any) -> Any:
        is_turned = isinstance(value, torch.Tensor) and lies_by_pixel(value)
        return self._turn(value, torch.contiguous_format) if is_turned else value

    def _turn(self, tensor: torch.Tensor, to: torch.memory_format) -> torch.Tensor:
        known = self._turned.get(id(tensor))
        if known is None:
            known = self._turned[id(tensor)] = tensor, aten.clone.default(tensor, memory_format=to)
        return known[1]


def lies_by_pixel(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 4:
        return False
    shape, strides = tuple(tensor.shape), tensor.stride()
    return is_channels_last(shape, strides) and not is_contiguous(shape, strides)


def _is_by_pixel(tensor: torch.Tensor) -> bool:
    """Whether PyTorch takes an image for one that lies pixel by pixel. With one channel it lies both ways, and strides
    tell how it is meant."""
    if tensor.dim() != 4 or tensor.shape[1] != 1:
        return lies_by_pixel(tensor)
    return suggested_format(tuple(tensor.shape), tensor.stride()) is BY_PIXEL


def _lie_alike(tensor: torch.Tensor, like: torch.Tensor | None) -> bool:
    steps = () if like is None else zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    return like is not None and all(size == 1 or step == other for size, step, other in steps)


def _is_meant_alike(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether what comes behind takes both for images of one kind. Those with one channel, or with one pixel, lie both
    ways, and PyTorch lays out what it makes of them as their strides say."""
    return not _is_meant_by_pixel(tensor) or _is_meant_by_pixel(like)


def _is_meant_by_pixel(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 4:
        return False
    shape, strides = tuple(tensor.shape), tensor.stride()
    return is_channels_last(shape, strides) and suggested_format(shape, strides) is BY_PIXEL


def _gains(image: torch.Tensor, weight: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether a convolution is faster with its image turned: one that looks at more than a pixel at a time."""
    if image.dim() != 4 or image.device.type != "cpu" or _is_transposed(others) or _is_by_pixel(image):
        return False
    is_usual = weight.is_contiguous() and image.is_contiguous() and image.dtype is torch.float32
    return is_usual and weight.shape[2] * weight.shape[3] > 1


def _is_transposed(others: Sequence[Any]) -> bool:
    """Of what follows image and weight: bias, stride, padding, dilation, transposed."""
    return bool(others[4])


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    return torch_compat.from_functional(tensor)
