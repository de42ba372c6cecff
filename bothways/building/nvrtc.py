"""NVIDIA's compiler for CUDA C++ as a library: found beside PyTorch, asked through ctypes. No toolkit is needed.

Comes in: a text and an architecture. Out: machine code for it. No GPU is needed here, and no driver.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways.errors import BuildFailed

# Products and sums are rounded one by one, as they are in eager, which runs them one by one.
FLAGS = ("--fmad=false", "--extra-device-vectorization", "--device-as-default-execution-space", "--std=c++17")
LIBRARY, BUILTINS = "libnvrtc.so.*", "libnvrtc-builtins.so.*"


class NoNVRTC(Exception):
    """There is no library that compiles CUDA C++ here."""


@dataclass(frozen=True)
class NVRTC:
    """The loaded library; ``version`` is its own."""

    library: Any
    version: str

    def knows(self, arch: str) -> bool:
        """Whether it compiles for an architecture; GPUs may be newer than it is."""
        count = ctypes.c_int()
        if self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
            return True  # it will say so itself
        numbers = (ctypes.c_int * count.value)()
        self._check(self.library.nvrtcGetSupportedArchs(numbers), "architectures")
        return int(arch.removeprefix("sm_")) in numbers

    def compile(self, text: str, arch: str) -> bytes:
        """Machine code for an architecture, such as ``sm_90``."""
        program = ctypes.c_void_p()
        source = text.encode("utf-8", "backslashreplace")
        self._check(
            self.library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None), "create"
        )
        try:
            flags = [f"--gpu-architecture={arch}".encode(), *(flag.encode() for flag in FLAGS)]
            code = self.library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            if code:
                log = self._output(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                raise BuildFailed(log.rstrip(b"\0\n").decode("utf-8", "replace") or self._said(code))
            return self._output(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _output(self, program: ctypes.c_void_p, get_size: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self.library[get_size](program, ctypes.byref(size)), get_size)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self.library[get](program, buffer), get)
        return buffer.raw

    def _check(self, code: int, what: str) -> None:
        if code:
            raise BuildFailed(f"{what}: {self._said(code)}")

    def _said(self, code: int) -> str:
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        said: bytes | None = self.library.nvrtcGetErrorString(code)
        return f"NVRTC error {code} ({(said or b'').decode()})"


@functools.cache
def nvrtc() -> NVRTC:
    """The library, loaded once; NoNVRTC when there is none that works."""
    problems = []
    for path in dict.fromkeys(_places()):
        try:
            return _loaded(path)
        except (OSError, AttributeError, NoNVRTC) as error:
            problems.append(f"{path}: {error}")
    raise NoNVRTC("; ".join(problems) or "libnvrtc is neither beside PyTorch nor on the loader's path")


def _loaded(path: str) -> NVRTC:
    """The library at a path. What it needs besides stands beside it, where the loader would not look."""
    for builtins in sorted(glob.glob(os.path.join(os.path.dirname(path) or ".", BUILTINS))):
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)
    major, minor = ctypes.c_int(), ctypes.c_int()
    if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
        raise NoNVRTC("it does not say its version")
    return NVRTC(library, f"{major.value}.{minor.value}")


def _places() -> Iterator[str]:
    """Where the library may be, the likeliest first: that of PyTorch's own CUDA before any other."""
    release = (torch.version.cuda or "").partition(".")[0]
    paths = [path for folder in _folders() for path in sorted(glob.glob(os.path.join(folder, LIBRARY)))]
    plain = [path for path in paths if ".alt." not in path]
    yield from sorted(plain, key=lambda path: f".so.{release}" not in os.path.basename(path))
    yield from (f"libnvrtc.so.{number}" for number in (release, "13", "12") if number)


def _folders() -> Sequence[str]:
    packages = dict.fromkeys([os.path.dirname(os.path.dirname(torch.__file__)), *sys.path])
    beside = [folder for path in packages for folder in sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))]
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    home = [os.path.join(os.environ[name], "lib64") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    own = os.path.join(os.path.dirname(torch.__file__), "lib")
    return [*beside, own, *filter(None, listed), *home, "/usr/local/cuda/lib64"]
