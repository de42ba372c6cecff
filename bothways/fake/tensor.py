"""A tensor without data: sizes, strides, dtype and the device it claims to be on, and nothing to compute with.

PyTorch's FakeTensor takes 0.1 ms an operation and 2 s of imports before the first one. A thin tensor is answered
from tables of plain Python (``fake/rules``); what they do not know raises ``NotThin``, and the caller asks PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bothways import torch_compat

Shape = tuple[int, ...]


class NotThin(Exception):
    """An operation needs data, or has no rule, or would fail: PyTorch's own fake tensors have to tell."""


class NeedsData(NotThin):
    """What comes out depends on the elements; no fake tensor can tell, unless it knows them."""


class SizedByData(NeedsData):
    """How much comes out depends on the elements. PyTorch's fakes run some such operations on zeros, and are wrong."""


class Spec(NamedTuple):
    """A new tensor that an operation returns."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype


class ThinMemory:
    """Stands for the storage of thin tensors: views have that of the tensor they are views of."""

    __slots__ = ("_owner",)

    def __init__(self, spec: Spec, offset: int = 0, nbytes: int | None = None) -> None:
        self._owner = (spec, offset, nbytes)

    @property
    def _cdata(self) -> int:
        """The name under which PyTorch's storages have their identity."""
        return id(self)

    def nbytes(self) -> int:
        spec, offset, nbytes = self._owner
        if nbytes is None:
            return extent(spec.shape, spec.stride, offset) * spec.dtype.itemsize
        return nbytes


def extent(shape: Shape, stride: Shape, offset: int) -> int:
    """How many elements from the beginning of a storage a tensor reaches."""
    if 0 in shape:
        return 0
    return offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


class ThinTensor(torch.Tensor):
    """Made by ``fresh`` and ``view``; every operation on it goes to ``answer``, which ``fake.mode`` provides."""

    memory: ThinMemory
    # Where factories make thin tensors, as PyTorch's fake tensors have it.
    fake_mode: Any
    answer: Callable[..., Any]

    __torch_function__ = torch_compat.disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return ThinTensor.answer(func, args, kwargs or {})

    def untyped_storage(self) -> ThinMemory:  # type: ignore[override]
        return self.memory

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ThinTensor({tuple(self.shape)}, {self.stride()}, {self.dtype}, {self.device})"


def fresh(spec: Spec, device: torch.device) -> ThinTensor:
    """A tensor with memory of its own."""
    shape, stride, dtype = spec
    thin: ThinTensor = torch_compat.tensor_without_memory(ThinTensor, shape, strides=stride, dtype=dtype, device=device)
    thin.memory = ThinMemory(spec)
    return thin


def thin_outline(shape: Shape, stride: Shape, dtype: torch.dtype, device: torch.device) -> ThinTensor:
    """A tensor of these facts, with memory of its own."""
    return fresh(Spec(shape, stride, dtype), device)


def view(base: ThinTensor, shape: Shape, stride: Shape, begin: int, dtype: torch.dtype | None = None) -> ThinTensor:
    """A window on the memory of ``base`` that begins so many elements from the beginning of that memory."""
    if torch.is_inference_mode_enabled() and not base.is_inference():  # nor are views of it, in that mode either
        with torch.inference_mode(False):
            return view(base, shape, stride, begin, dtype)
    thin: ThinTensor = torch_compat.tensor_without_memory(
        ThinTensor, shape, strides=stride, storage_offset=begin, dtype=dtype or base.dtype, device=base.device
    )
    thin.memory = base.memory
    return thin


def offset(tensor: torch.Tensor) -> int:
    """Where the tensor begins in its memory; sizes are never symbols here."""
    return tensor.storage_offset()  # type: ignore[return-value]


def thin_like(
    tensor: torch.Tensor, memory: dict[int, ThinMemory] | None = None, outline: torch.Tensor | None = None
) -> ThinTensor:
    """The thin tensor that stands for a real one; ``memory`` keeps what shares storage sharing it."""
    if not torch_compat.is_plain_dense(tensor):
        raise NotThin(f"{type(tensor).__name__} is not a plain dense tensor")
    begin = offset(tensor)
    nbytes: int | None = tensor.untyped_storage().nbytes()
    spec = Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    if outline is not None:  # whose memory is as large as its symbols say
        begin, nbytes = 0, None
        spec = Spec(tuple(outline.shape), outline.stride(), tensor.dtype)
    thin: ThinTensor = torch_compat.tensor_without_memory(
        ThinTensor, spec.shape, strides=spec.stride, storage_offset=begin, dtype=spec.dtype, device=tensor.device
    )
    own = ThinMemory(spec, begin, nbytes)
    thin.memory = own if memory is None else memory.setdefault(torch_compat.storage_identity(tensor), own)
    return thin


def restride(tensor: ThinTensor, like: ThinTensor) -> ThinTensor:
    """Give a tensor the sizes and strides of a view of it, in place."""
    with torch_compat.below_dispatch():
        tensor.as_strided_(like.shape, like.stride(), like.storage_offset())
    return tensor
