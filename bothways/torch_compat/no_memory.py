"""Tensors without memory that refuse to say where it is.

Their address would be null, and a kernel that is launched on it ends the process, or poisons the GPU. Whoever
asks for it, in Python or in C++, gets an error instead, and the tracer leaves that code alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._C as _C
from torch.overrides import TorchFunctionMode

_READ_ADDRESSES = frozenset({torch.Tensor.data_ptr, torch.Tensor.__dlpack__, torch.utils.dlpack.to_dlpack})


def tensor_without_memory(cls: type[torch.Tensor], shape: Any, **options: Any) -> Any:
    """A tensor of a subclass that has sizes, strides, dtype and device and no data."""
    tensor = torch.Tensor._make_wrapper_subclass(cls, shape, **options)
    _C._set_throw_on_mutable_data_ptr(tensor)
    return tensor


class _RefusingAddresses(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READ_ADDRESSES:
            raise RuntimeError("a tensor that is traced has no address")
        with _C.DisableTorchFunction():  # modes of the user's are not asked
            return func(*args, **(kwargs or {}))


@contextmanager
def without_addresses() -> Iterator[None]:
    """Inside of it no tensor tells Python where its memory is: C++ makes wrappers of its own for what is computed."""
    with _C._EnableTorchFunction(), _RefusingAddresses():
        yield
