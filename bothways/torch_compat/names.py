"""PyTorch's private functions, classes and attributes, under names of ours."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch._C as _C
import torch._jit_internal
import torch._library.custom_ops
import torch._subclasses.schema_check_mode  # with the package, as operations load it when they first run
import torch.amp.autocast_mode as autocast_mode
import torch.nn.attention
import torch.nn.modules.module as module_internals
import torch.optim.optimizer as optimizer_internals
import torch.overrides
import torch.utils._contextlib
import torch.utils._device
import torch.utils._pytree as pytree
from torch.optim.asgd import _multi_tensor_asgd, _single_tensor_asgd
from torch.optim.radam import _multi_tensor_radam, _single_tensor_radam
from torch.utils._python_dispatch import TorchDispatchMode

tree_flatten, tree_unflatten, tree_map_only = pytree.tree_flatten, pytree.tree_unflatten, pytree.tree_map_only
broadcast_to_tree: Callable[[Any, Any], list[Any] | None] = pytree._broadcast_to_and_flatten

# What autograd says, in C++.
FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
NO_INPUT_NEEDS_GRADIENTS = (
    "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs require "
    "gradients. See https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
    "#torch.nn.Module.register_full_backward_hook for more details."
)
UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is "
    "the desired behavior."
)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose ``__torch_dispatch__`` is not wrapped to keep torch.compile out, which loads all of it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# How a subclass of tensors leaves functions alone.
disabled_torch_function: Any = _C._disabled_torch_function_impl

# Interpreter-wide state: what the fakes run under and what the guards compare.
is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
is_inference_mode_enabled: Callable[[], bool] = torch.is_inference_mode_enabled
is_any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
get_default_dtype: Callable[[], torch.dtype] = torch.get_default_dtype
function_mode_depth: Callable[[], int] = _C._len_torch_function_stack
dispatch_mode_depth: Callable[[], int] = _C._len_torch_dispatch_stack
functorch_level: Callable[[], int | None] = _C._functorch.maybe_current_level
is_jit_tracing: Callable[[], bool] = _C._is_tracing
are_deterministic_algorithms_enabled: Callable[[], bool] = torch.are_deterministic_algorithms_enabled

# Functions torch calls to ask whether a compiler is at work; inside a capture the answers are known.
is_scripting: Callable[[], bool] = torch._jit_internal.is_scripting
get_tracing_state: Callable[[], Any] = _C._get_tracing_state

# Attention asks whether PyTorch's own tracer runs; it never does inside a capture. Newer versions have dropped it.
is_make_fx_tracing: Callable[[], bool] | None = getattr(torch.nn.modules.activation, "_is_make_fx_tracing", None)
check: Callable[..., None] = torch._check
assert_: Callable[..., None] = torch._assert
check_is_size: Callable[..., None] = inspect.unwrap(torch._check_is_size)  # newer versions warn before it
log_api_usage_once: Callable[[str], None] = _C._log_api_usage_once

# Autocast as two calls, the form a graph can hold.
enter_autocast: Callable[..., Any] = autocast_mode._enter_autocast
exit_autocast: Callable[..., Any] = autocast_mode._exit_autocast
enter_inference_mode: Callable[[bool], Any] = torch.autograd.grad_mode._enter_inference_mode
exit_inference_mode: Callable[[Any], None] = torch.autograd.grad_mode._exit_inference_mode

context_decorator: Callable[..., Any] = torch.utils._contextlib.context_decorator
# Functions that make tensors on the default device; a context in which no torch function mode sees what is called.
device_constructors: Callable[[], set[Any]] = torch.utils._device._device_constructors
without_function_modes: Callable[[], Any] = _C.DisableTorchFunction
without_subclass_functions: Callable[[], Any] = _C.DisableTorchFunctionSubclass

# Whether C++ makes products of matrices of their parts without asking for plain sizes.
PRODUCTS_TAKE_SYMBOLS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
# What people put in the way of functions: the stack of their modes, and how much of ``__torch_function__`` is heeded.
push_function_mode: Callable[[Any], None] = _C._push_on_torch_function_stack
pop_function_mode: Callable[[], Any] = _C._pop_torch_function_stack
function_mode_at: Callable[[int], Any] = _C._get_function_stack_at
OverrideState: Any = _C._TorchFunctionState  # type: ignore[attr-defined]
override_state: Callable[[], Any] = _C._get_torch_function_state  # type: ignore[attr-defined]
set_override_state: Callable[[Any], None] = _C._set_torch_function_state  # type: ignore[attr-defined]
OVERRIDE_SWITCHES: dict[Any, Any] = {
    _C.DisableTorchFunction: OverrideState.ALL_DISABLED,
    _C.DisableTorchFunctionSubclass: OverrideState.SUBCLASSES_DISABLED,
}
disabled_torch_dispatch: Any = _C._disabled_torch_dispatch_impl
make_subclass: Callable[..., Any] = torch.Tensor._make_subclass
# Adafactor's two ways of updating parameters, one by one or all at once; they take the same arguments.
ADAFACTOR_UPDATES: tuple[Any, ...] = (
    torch.optim._adafactor._single_tensor_adafactor,
    torch.optim._adafactor._multi_tensor_adafactor,
)
# The same of RAdam, and of ASGD, which differ in their roundings.
RADAM_UPDATES: tuple[Any, ...] = (_single_tensor_radam, _multi_tensor_radam)
ASGD_UPDATES: tuple[Any, ...] = (_single_tensor_asgd, _multi_tensor_asgd)
# The updates that are one operation: Adam's, AdamW's, SGD's and Adagrad's.
FUSED_UPDATES: tuple[Any, ...] = (
    torch._fused_adam_, torch._fused_adamw_, torch._fused_sgd_, torch._fused_adagrad_,
)  # fmt: skip
# What a ``GradScaler`` does to gradients, and to its scale.
UNSCALE: Any = torch._amp_foreach_non_finite_check_and_unscale_
UPDATE_SCALE: Any = torch._amp_update_scale_
# Optimizers stack numbers for PyTorch's compiler; eager leaves them in their list.
stack_if_compiling: Callable[[Any], Any] | None = getattr(optimizer_internals, "_stack_if_compiling", None)
# What ``torch.func.grad`` and ``grad_and_value`` do when the function that they give is called.
GRAD_TRANSFORM: Callable[..., Any] = torch._functorch.eager_transforms.grad_impl
GRAD_AND_VALUE_TRANSFORM: Callable[..., Any] = torch._functorch.eager_transforms.grad_and_value_impl
# What ``torch.vmap`` does when the function that it gives is called.
VMAP_TRANSFORM: Callable[..., Any] = torch._functorch.vmap.vmap_impl
# Formulas of forward derivatives, which PyTorch loads when it first needs one, with warnings.
load_forward_formulas: Callable[[], None] = torch.autograd.forward_ad._maybe_load_decompositions
# What an error inside of a transform leaves behind in the thread is put back.
preserve_dispatch: Callable[[], AbstractContextManager[None]] = _C._PreserveDispatchKeyGuard
are_transforms_active: Callable[[], bool] = _C._are_functorch_transforms_active
LazyPropertyOfClass: type = torch.distributions.utils._lazy_property_and_property
# Whether a mask is the causal one, asked by the layers of ``torch.nn.Transformer``.
DETECT_CAUSAL_MASK: Callable[..., bool] = torch.nn.modules.transformer._detect_is_causal_mask
group_tensors: Callable[..., Any] = _C._group_tensors_by_device_and_dtype
optimizer_value: Callable[[Any], Any] = optimizer_internals._get_value
is_all_true: Callable[[torch.Tensor], torch.Tensor] = torch._is_all_true
is_checkpoint_valid: Callable[[], bool] = torch.autograd._is_checkpoint_valid
is_fx_tracing: Callable[[], bool] = torch.fx._symbolic_trace.is_fx_tracing
unwrap_optional: Callable[[Any], Any] = torch.jit._unwrap_optional
foreach_pow: Callable[..., Any] = torch._foreach_pow
foreach_lerp_: Callable[..., Any] = torch._foreach_lerp_
foreach_copy_: Callable[..., Any] = torch._foreach_copy_
get_cublas_allow_tf32: Callable[[], bool] = _C._get_cublas_allow_tf32

# Which implementations of attention may be used: what sets each switch, and what reads it.
SDP_SWITCHES: dict[Any, Any] = {
    getattr(_C, f"_set_sdp_use_{name}"): getattr(_C, f"_get_{name}_sdp_enabled")
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(_C, f"_set_sdp_use_{name}")
}
set_sdp_priority: Callable[[list[int]], None] = _C._set_sdp_priority_order
get_sdp_priority: Callable[[], list[int]] = _C._get_sdp_priority_order
attention_kernels: Callable[..., list[Any]] = torch.nn.attention._cur_sdpa_kernel_backends
use_attention_kernels: Callable[..., None] = torch.nn.attention._sdpa_kernel
SDPAParams: type = torch.backends.cuda.SDPAParams
foreach_addcdiv_: Callable[..., Any] = torch._foreach_addcdiv_
get_privateuse1_backend_name: Callable[[], str] = _C._get_privateuse1_backend_name

MULTI_HANDLE: type = torch.autograd.graph._MultiHandle

# Saved-tensor hooks as calls, and the message of who disabled them.
push_saved_tensors_hooks: Callable[..., None] = _C._autograd._push_saved_tensors_default_hooks
top_saved_tensors_hooks: Callable[[], Any] = partial(_C._autograd._top_saved_tensors_default_hooks, True)
pop_saved_tensors_hooks: Callable[[], None] = _C._autograd._pop_saved_tensors_default_hooks
disable_saved_tensors_hooks: Callable[[str], None] = _C._autograd._saved_tensors_hooks_disable
enable_saved_tensors_hooks: Callable[[], None] = _C._autograd._saved_tensors_hooks_enable
saved_tensors_hooks_disabled: Callable[[], str | None] = (
    _C._autograd._saved_tensors_hooks_get_disabled_error_message
)

# What nn.Module puts around the tensors of a module that has backward hooks, and how it finds them.
BackwardHookFunction: type[torch.autograd.Function] = torch.nn.modules._functions.BackwardHookFunction
module_backward_hooks: Callable[[torch.nn.Module], tuple[list[Any], list[Any]]] = torch.nn.Module._get_backward_hooks
module_backward_pre_hooks: Callable[[torch.nn.Module], list[Any]] = torch.nn.Module._get_backward_pre_hooks
warn_of_partial_hook: Callable[..., None] = torch.nn.Module._maybe_warn_non_full_backward_hook
HookOfModule: Callable[..., Any] = module_internals._WrappedHook

# Where C-implemented tensor functions live.
VARIABLE_FUNCTIONS: Any = _C._VariableFunctions
NN_FUNCTIONS: Any = _C._nn
# The class with the methods of tensors that are written in C++.
TENSOR_METHODS: Any = _C.TensorBase
# The module with the methods of tensors that are written in Python.
TENSOR_MODULE: Any = torch._tensor
LINALG_FUNCTIONS: Any = getattr(_C, "_linalg", None)
FFT_FUNCTIONS: Any = getattr(_C, "_fft", None)
SPECIAL_FUNCTIONS: Any = getattr(_C, "_special", None)
OP_TYPES: tuple[type, ...] = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

# ``apply`` of custom functions, called with the class: a Python function, or since 2.15 what C++ has in its place.
_APPLY: Any = torch.autograd.Function.__dict__["apply"]
APPLY_FUNCTION: Callable[..., Any] = getattr(_APPLY, "__func__", _APPLY)
# What ``cls.apply`` gives where no class has another; a bound one has one of these classes.
bound_apply: Callable[[type], Any] = partial(_APPLY.__get__, None)
BOUND_APPLY: tuple[type, ...] = (types.MethodType, types.BuiltinMethodType)

# How an operation that was made by ``torch.library.custom_op`` is called.
CALL_CUSTOM_OPERATION: Any = torch._library.custom_ops.CustomOpDef.__call__

LAZY_MODULE_WAITING = "_initialize_hook"  # what a lazy module has until its first call

GLOBAL_BACKWARD_HOOKS: tuple[str, ...] = ("_global_backward_pre_hooks", "_global_backward_hooks")
call_module: Any = torch.nn.Module._call_impl
none_or_dtype: Any = torch.nn.functional._none_or_dtype
# Where DistributedDataParallel calls the module that it is around; what comes before and after is its reducer's.
call_distributed: Any = torch.nn.parallel.DistributedDataParallel._run_ddp_forward
_MODULE_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


_INNER_HOOK = "register_multi_grad_hook.<locals>.get_inner_hook.<locals>.inner_hook"


def counts_nodes(hook: Any) -> bool:
    """Whether this is a hook by which ``register_multi_grad_hook`` waits for all the nodes that the engine runs."""
    return getattr(hook, "__qualname__", None) == _INNER_HOOK and hook.__module__ == torch.autograd.graph.__name__


def calls_forward(module: torch.nn.Module) -> bool:
    """Whether calling the module does nothing but to call its class's ``forward``."""
    state = module.__dict__
    return (
        type(module).__call__ is torch.nn.Module.__call__
        and "forward" not in state
        and not state.get("_compiled_call_impl")
        and not any(state.get(name) for name in _MODULE_HOOKS)
        and not torch.nn.modules.module._has_any_global_hook()
    )


GLOBAL_FORWARD_HOOKS: tuple[str, ...] = ("_global_forward_pre_hooks", "_global_forward_hooks")
