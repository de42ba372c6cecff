"""What CUDA graphs need of PyTorch: how often a storage is held, what decides which kernels an operation launches."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._C as _C


def uses_of(handles: Sequence[int]) -> list[int]:
    """How many hold each of these storages, in Python and in C++; ``handles`` are their ``_cdata``."""
    return list(map(_C._storage_Use_Count, handles))


def dispatch_mode_depth() -> int:
    """How many modes look at each operation that is dispatched."""
    depth: int = _C._len_torch_dispatch_stack()
    return depth


# What operations on a GPU ask before they choose a kernel, besides their arguments.
_SETTINGS: tuple[Any, ...] = tuple(
    getattr(_C, name)
    for name in (
        "is_grad_enabled", "is_inference_mode_enabled", "_get_deterministic_algorithms",
        "_get_deterministic_fill_uninitialized_memory", "_get_cublas_allow_tf32",
        "_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation", "_get_cudnn_allow_tf32", "_get_cudnn_enabled", "_get_cudnn_benchmark",
        "_get_cudnn_deterministic", "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled",
        "_get_cudnn_sdp_enabled",
    )
    if hasattr(_C, name)
)  # fmt: skip


def launch_settings() -> tuple[Any, ...]:
    """The interpreter-wide state that decides which kernels operations launch."""
    return tuple([ask() for ask in _SETTINGS])


def set_storage(tensor: torch.Tensor, storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Let a tensor lie in a storage as another one does in its own."""
    return tensor.set_(storage, like.storage_offset(), like.shape, like.stride())


def replay_of(graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
    """What replays a graph of ours, in C++ alone."""
    replay: Callable[[], None] = super(torch.cuda.CUDAGraph, graph).replay
    return replay


def stream_is_capturing() -> bool:
    """Whether what this thread launches goes into a CUDA graph."""
    answer: bool = _C._cuda_isCurrentStreamCapturing()
    return answer


@functools.cache
def _cuda_library() -> Any:
    """PyTorch's own, for what has no name in Python; None where its memory is not that of its own allocator."""
    if torch.cuda.get_allocator_backend() != "native":
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    except OSError:
        return None


@functools.cache
def _forgetting() -> Callable[[ctypes.c_void_p], None] | None:
    """What PyTorch's own graphs do when they are gone. It is not in every version."""
    try:
        forget: Any = _cuda_library()["_ZN2at4cuda30clearCublasWorkspacesForStreamEP11CUstream_st"]
    except (TypeError, AttributeError):
        return None
    forget.restype, forget.argtypes = None, [ctypes.c_void_p]
    return forget


def forget_workspaces(stream: int) -> bool:
    """Free the memory that matrix products on a stream have worked in, where PyTorch can; the next ones take other."""
    forget = _forgetting()
    if forget is None:
        return False
    forget(ctypes.c_void_p(stream))
    return True


@functools.cache
def workspace_tables() -> tuple[int, ...]:
    """Where PyTorch 2.11 notes that memory, which it forgets for all streams or for none: each is a ``std::map`` from
    a library's handle and a stream to memory, and the lock of it. None of another version, which may have it
    otherwise."""
    if not torch.__version__.startswith("2.11.") or platform.machine() != "x86_64":
        return ()
    tables = []
    for name in ("33cublas_handle_stream_to_workspaceEv", "35cublaslt_handle_stream_to_workspaceEv"):
        try:
            find: Any = _cuda_library()[f"_ZN2at4cuda{name}"]
        except (TypeError, AttributeError):
            return ()
        find.restype, find.argtypes = ctypes.c_void_p, []
        tables.append(find() or 0)
    return tuple(tables)


foreach_mul: Any = torch._foreach_mul
