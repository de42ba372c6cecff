"""The one door to PyTorch's private names, and the place for what differs between its versions.

Everything here is a thin name for something PyTorch has; nothing here knows about bothways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._C as _C
import torch._jit_internal
import torch.amp.autocast_mode as autocast_mode
import torch.nn.modules.module as module_internals
import torch.utils._contextlib
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode

__all__ = ["DispatchMode", "tree_flatten", "tree_map_only", "tree_unflatten"]

tree_flatten, tree_unflatten, tree_map_only = pytree.tree_flatten, pytree.tree_unflatten, pytree.tree_map_only

# Interpreter-wide state: what the fakes run under and what the guards compare.
is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
is_inference_mode_enabled: Callable[[], bool] = torch.is_inference_mode_enabled
is_any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
get_default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
function_mode_depth: Callable[[], int] = _C._len_torch_function_stack
dispatch_mode_depth: Callable[[], int] = _C._len_torch_dispatch_stack
functorch_level: Callable[[], int | None] = _C._functorch.maybe_current_level
are_deterministic_algorithms_enabled: Callable[[], bool] = torch.are_deterministic_algorithms_enabled

# Functions torch calls to ask whether somebody compiles; inside a capture the answers are known.
is_scripting: Callable[[], bool] = torch._jit_internal.is_scripting
get_tracing_state: Callable[[], Any] = _C._get_tracing_state

# Attention asks whether PyTorch's own tracer runs; it never does inside a capture. Newer versions have dropped it.
is_make_fx_tracing: Callable[[], bool] | None = getattr(torch.nn.modules.activation, "_is_make_fx_tracing", None)
log_api_usage_once: Callable[[str], None] = _C._log_api_usage_once

# Autocast as two calls, the form a graph can hold.
enter_autocast: Callable[..., Any] = autocast_mode._enter_autocast
exit_autocast: Callable[..., Any] = autocast_mode._exit_autocast
enter_inference_mode: Callable[[bool], Any] = torch.autograd.grad_mode._enter_inference_mode
exit_inference_mode: Callable[[Any], None] = torch.autograd.grad_mode._exit_inference_mode

context_decorator: Callable[..., Any] = torch.utils._contextlib.context_decorator

# Where C-implemented tensor functions live.
VARIABLE_FUNCTIONS: Any = _C._VariableFunctions
NN_FUNCTIONS: Any = _C._nn
LINALG_FUNCTIONS: Any = getattr(_C, "_linalg", None)
FFT_FUNCTIONS: Any = getattr(_C, "_fft", None)
SPECIAL_FUNCTIONS: Any = getattr(_C, "_special", None)
OP_TYPES: tuple[type, ...] = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

APPLY_FUNCTION: Callable[..., Any] = torch.autograd.Function.__dict__["apply"].__func__

GLOBAL_MODULE_HOOKS: tuple[str, ...] = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
)


def autocast_state() -> tuple[object, ...]:
    """What autocast does on each kind of device programs run on, and whether it keeps casted weights."""
    return (
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")),
        torch.is_autocast_cache_enabled(),
    )


def global_module_hooks() -> dict[str, Any]:
    """The module-wide hook dictionaries of ``nn.Module``, as the globals of its defining module."""
    return vars(module_internals)


def fake_tensor_mode() -> Any:
    """PyTorch's own fake tensors, for the operations plain meta tensors cannot answer."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=False)


def fake_tensor(mode: Any, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor that claims to be on ``device`` and has the meta tensor's sizes and strides."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor(mode, meta, device)


def no_modes() -> AbstractContextManager[None]:
    """Run without the dispatch modes that are active, so that plain meta tensors can be made."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def below_autograd() -> AbstractContextManager[None]:
    """Run operations without autograd looking at them, whatever the grad mode is."""
    return _C._AutoDispatchBelowAutograd()


def without_saved_tensor_hooks() -> AbstractContextManager[None]:
    """Keep the user's saved-tensor hooks from seeing fake tensors: the innermost pair of hooks is the one used."""
    if _C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def is_fake(tensor: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def to_functional(tensor: torch.Tensor) -> torch.Tensor:
    """A wrapper on which in-place operations become functional ones."""
    return torch._to_functional_tensor(tensor)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The current value behind a functional wrapper."""
    if not torch._is_functional_tensor(tensor):
        return tensor
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def enable_functionalization() -> None:
    torch._enable_functionalization(reapply_views=True)


def disable_functionalization() -> None:
    torch._disable_functionalization()


def storage_identity(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata


def fake_with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A fake of its own with the same sizes and the given strides, made without being recorded."""
    with no_modes():
        mode = tensor.fake_mode  # type: ignore[attr-defined]
        with mode:
            made = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return from_functional(made)  # functionalization, when it is on, wraps what factories make


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Autocast remembers casted weights by tensor; traced fakes must not be found there later."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def fake_tensor_errors() -> tuple[type[Exception], ...]:
    """What PyTorch's fake tensors raise when an operation needs data or has no shape rule."""
    from torch._subclasses import fake_tensor

    names = ("UnsupportedFakeTensorException", "DynamicOutputShapeException", "DataDependentOutputException")
    return tuple(getattr(fake_tensor, name) for name in names)
