"""Where the C++ tensor lies inside a Python one, and the functions of PyTorch's C interface that read it.

The interface (torch/csrc/inductor/aoti_torch/c/shim.h) is what PyTorch's own ahead-of-time compiled programs call; it
takes the address of an ``at::Tensor``. Where a Python tensor holds its own is found by looking for it.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from typing import Any

import torch
import torch._C as _C

_WORD = ctypes.sizeof(ctypes.c_void_p)


@functools.cache
def tensor_offset() -> int | None:
    """How many bytes into a Python tensor its ``at::Tensor`` begins, which is one pointer; None if unsure."""
    head = object.__basicsize__
    plain = torch.zeros(2, 3, device="cpu")
    samples = [plain, plain.t(), torch.nn.Parameter(plain), torch.zeros((), dtype=torch.int64, device="cpu")]
    places = [
        [at for at in range(head, torch.Tensor.__basicsize__, _WORD) if _word(id(tensor) + at) == tensor._cdata]
        for tensor in samples
    ]
    first = places[0]
    return first[0] if len(first) == 1 and all(place == first for place in places) else None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(_C.__file__)  # already loaded; what it depends on is found through it


def c_function(name: str) -> Any | None:
    """A function of PyTorch's C interface; None when this version has none of that name."""
    return getattr(_library(), name, None)


# What the interface does not tell: whether a tensor's elements are something else than what is in its memory, and
# whether it was made in inference mode. C++ has functions that read a bit of an ``at::Tensor`` and take its address.
QUESTIONS: dict[str, str] = {
    "is_negated": "_ZN2at6native6is_negERKNS_6TensorE",
    "is_conjugated": "_ZN2at6native7is_conjERKNS_6TensorE",
    "is_zero": "_ZN2at6native14_is_zerotensorERKNS_6TensorE",
    "is_functional": "_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE",
    "is_inference": "_ZN2at6native12is_inferenceERKNS_6TensorE",
}


def question(name: str) -> int | None:
    """The address of one of these functions; None when this build of PyTorch calls it otherwise."""
    function = c_function(QUESTIONS[name])
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def gradient_question() -> int:
    """The address of the C++ function that tells whether a ``TensorImpl`` needs a gradient; 0 where there is none."""
    function = c_function("_ZNK3c1010TensorImpl13requires_gradEv")
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def gradient_getter() -> int:
    """The address of the C++ function that gives the gradient of a ``TensorImpl``; 0 where there is none."""
    function = c_function("_ZNK3c1010TensorImpl4gradEv")
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def wrapping_function() -> int:
    """The address of the C++ function that makes a Python tensor of an ``at::Tensor``; 0 where there is none."""
    function = c_function("_Z16THPVariable_WrapRKN2at10TensorBaseE")
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


# The state of the interpreter that C++ tells by a function without arguments -> that function.
STATE_QUESTIONS: dict[Any, str] = {
    torch.is_grad_enabled: "_ZN3c108GradMode10is_enabledEv",
    torch.is_inference_mode_enabled: "_ZN3c1013InferenceMode10is_enabledEv",
}


@functools.cache
def state_question(ask: Any) -> int | None:
    """The address of the C++ function that a Python function asks; None where there is none, or none of that name."""
    function = c_function(STATE_QUESTIONS[ask]) if ask in STATE_QUESTIONS else None
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def put_off(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Tensors like a complex one whose elements are not what is in their memory, one for each question about that."""
    zero = torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return [torch._neg_view(tensor), tensor.conj(), zero, torch._to_functional_tensor(tensor)]


@functools.cache
def dtype_code(dtype: torch.dtype) -> int | None:
    """The number of a dtype in the C interface; None for those that plain tensors do not have."""
    offset, ask = tensor_offset(), c_function("aoti_torch_get_dtype")
    try:
        sample = torch.empty(0, dtype=dtype, device="meta")
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    if offset is None or ask is None:
        return None
    code = ctypes.c_int32()
    failed = ask(ctypes.c_void_p(id(sample) + offset), ctypes.byref(code))
    return None if failed else code.value


@functools.cache
def device_code(kind: str) -> int | None:
    """The number of a type of device in the C interface."""
    ask = c_function(f"aoti_torch_device_type_{kind}")
    return None if ask is None else int(ask())


@functools.cache
def strided_code() -> int | None:
    """The number of the layout of ordinary tensors in the C interface."""
    ask = c_function("aoti_torch_layout_strided")
    return None if ask is None else int(ask())


# Classes whose objects hold nothing but a plain tensor: no code of a subclass answers for them.
PLAIN_TENSORS: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
GRAD_GETTER: Any = inspect.getattr_static(torch.Tensor, "grad")
REQUIRES_GRAD: Any = inspect.getattr_static(torch.Tensor, "requires_grad")


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses between which a tensor's memory lies, all of its storage's; equal where there is none."""
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return (begin, begin + storage.nbytes()) if begin else (storage._cdata, storage._cdata + 1)
