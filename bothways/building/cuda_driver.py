"""NVIDIA's driver, asked through ctypes: code is loaded into the context that PyTorch has on a device, and launched.

Nothing here makes a context or memory: these are PyTorch's.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

SHARED_BY_ALL = 48 * 1024  # bytes of shared memory that a block gets without asking
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class NoDriver(Exception):
    """There is no driver, or none that does what is asked of it."""


@functools.cache
def driver() -> Any:
    """The driver's library."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuDriverGetVersion  # noqa: B018  (is it one?)
    except (OSError, AttributeError) as error:
        raise NoDriver(str(error)) from None
    return library


@functools.cache
def driver_version() -> int:
    number = ctypes.c_int()
    check(driver().cuDriverGetVersion(ctypes.byref(number)))
    return number.value


def check(code: int) -> None:
    """Raise what PyTorch raises of an error in CUDA."""
    if code:
        raise_error(code)


def raise_error(code: int) -> None:
    texts = ctypes.c_char_p(), ctypes.c_char_p()
    driver().cuGetErrorString(code, ctypes.byref(texts[0]))
    driver().cuGetErrorName(code, ctypes.byref(texts[1]))
    said, name = ((text.value or b"unknown").decode() for text in texts)
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise torch.cuda.OutOfMemoryError(f"CUDA error: {said} ({name})")
    raise RuntimeError(f"CUDA error: {said} ({name})")


@functools.cache
def architecture(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@functools.cache
def context(device: int) -> int:
    """The context that PyTorch has on a device; its own runtime keeps it until the process ends."""
    torch.cuda.current_stream(device)  # PyTorch makes it
    torch.empty(1, device=torch.device("cuda", device))
    number, primary = ctypes.c_int(), ctypes.c_void_p()
    check(driver().cuDeviceGet(ctypes.byref(number), device))
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(primary), number))
    return primary.value or 0


def new_stream(device: int) -> int:
    """The address of a stream that stays, and that waits for no other unless it is told to."""
    stream = ctypes.c_void_p()
    with DeviceContext(device):
        check(driver().cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
    return stream.value or 0


class DeviceContext:
    """What the driver does inside of it is done in a device's context."""

    def __init__(self, device: int) -> None:
        self._context = context(device)

    def __enter__(self) -> None:
        check(driver().cuCtxPushCurrent_v2(ctypes.c_void_p(self._context)))

    def __exit__(self, *error: object) -> None:
        driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


class Module:
    """Machine code that is loaded on one device. It stays there: graphs of CUDA's that replay it hold no reference."""

    def __init__(self, code: bytes, device: int) -> None:
        self.device = device
        self._handle = ctypes.c_void_p()
        with DeviceContext(device):
            check(driver().cuModuleLoadData(ctypes.byref(self._handle), code))

    def find(self, name: str, shared: int = 0) -> int:
        """The handle of a kernel, 0 if it is in another module; ``shared`` are the bytes that its launches ask for."""
        function = ctypes.c_void_p()
        with DeviceContext(self.device):
            if driver().cuModuleGetFunction(ctypes.byref(function), self._handle, name.encode()):
                return 0
            if shared > SHARED_BY_ALL:
                check(driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared))
        return function.value or 0


def launch(
    function: int, blocks: int, threads: int, shared: int, stream: int, values: ctypes.Array[ctypes.c_uint64]
) -> int:
    """Launch a kernel on a stream of the current context; the driver's code of what went wrong."""
    first = ctypes.addressof(values)
    places = (ctypes.c_void_p * len(values))(*(first + 8 * place for place in range(len(values))))
    code: int = driver().cuLaunchKernel(
        ctypes.c_void_p(function), blocks, 1, 1, threads, 1, 1, shared, ctypes.c_void_p(stream), places, None
    )
    return code
