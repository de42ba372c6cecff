"""What takes more than a name: PyTorch's states and tensors, and what differs between its versions."""

from __future__ import annotations

import functools
import linecache
import os
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._C as _C
import torch._jit_internal
import torch.autograd.forward_ad as forward_ad
import torch.fx._symbolic_trace
import torch.nn.modules.module as module_internals
import torch.utils._contextlib
import torch.utils._device

from bothways.torch_compat import statistics
from bothways.torch_compat.functionalizing import from_functional
from bothways.torch_compat.names import (
    function_mode_depth,
    is_any_autocast_enabled,
)

_keep_view_operations: Any = torch.autograd.grad_mode._force_original_view_tracking


def autocast_state() -> tuple[Any, ...]:
    """What autocast does on each kind of device programs run on, and whether it keeps casted weights."""
    return (
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")),
        torch.is_autocast_cache_enabled(),
    )


def autocast_now() -> tuple[Any, ...] | None:
    """``autocast_state()`` where it is on for some kind of device, else None."""
    return autocast_state() if is_any_autocast_enabled() else None


@contextmanager
def autocast_as(wanted: tuple[Any, ...] | None) -> Iterator[None]:
    """Autocast as ``autocast_now()`` was at another time."""
    before = autocast_state()
    try:
        _set_autocast(wanted or (*((False, dtype) for _, dtype in before[:-1]), before[-1]))
        yield
    finally:
        _set_autocast(before)


def _set_autocast(state: tuple[Any, ...]) -> None:
    for kind, (enabled, dtype) in zip(("cpu", "cuda"), state[:-1], strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(state[-1])


def without_autocast() -> AbstractContextManager[None]:
    """Run operations as they are, whatever autocast would make of them."""
    return _C._DisableAutocast()


def in_forward_mode() -> bool:
    """Whether tensors may carry the tangents of forward-mode differentiation."""
    return forward_ad._current_level >= 0


def records_gradients() -> bool:
    """Whether operations on tensors that need gradients are followed: in inference mode they never are."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def global_module_hooks() -> dict[str, Any]:
    """The module-wide hook dictionaries of ``nn.Module``, as the globals of its defining module."""
    return vars(module_internals)


def fake_tensor_mode(*, allow_real: bool = False, corrected: Callable[..., Any] | None = None) -> Any:
    """PyTorch's own fake tensors, for the operations plain meta tensors cannot answer; ``corrected`` is asked what an
    operation gives in place of what they say: it takes the operation, its arguments and their result."""
    mode = _fake_tensor_mode_without_log()(allow_non_fake_inputs=allow_real)
    mode._allow_unsafe_data_ptr_access = False
    mode.corrected = corrected
    return mode


@functools.cache
def _fake_tensor_mode_without_log() -> Any:
    """FakeTensorMode writes an error with its traceback into the log when an operation refuses its arguments, which
    is the user's business: plain Python raises the same error at the line that made it. And it runs kernels that have
    no rule for shapes, on zeros; of those that draw, it must not, since the program would draw other numbers."""
    from torch._subclasses import fake_tensor

    class FakeTensorModeWithoutLog(fake_tensor.FakeTensorMode):
        corrected: Callable[..., Any] | None = None

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # which would load it

        def can_run_unsafe_fallback(self, func: Any) -> bool:
            draws = torch.Tag.nondeterministic_seeded in func.tags
            return not draws and bool(super().can_run_unsafe_fallback(func))

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before, fake_tensor.log.disabled = fake_tensor.log.disabled, True
            try:
                result = super().__torch_dispatch__(func, types, args, kwargs or {})
            finally:
                fake_tensor.log.disabled = before
            result = statistics.corrected(func, args, result)
            return result if self.corrected is None else self.corrected(func, args, kwargs or {}, result)

    return FakeTensorModeWithoutLog


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


@contextmanager
def uncounted(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let changes of these tensors not count. Some kernels for lists count by themselves, so versions are put back."""
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    versions = [tensor._version for tensor in counted]
    try:
        yield
    finally:
        set_versions(counted, versions)


def below_dispatch() -> AbstractContextManager[None]:
    """Run operations on a tensor subclass as on the tensor it is made of."""
    return _C._DisableTorchDispatch()


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    create_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """``torch.autograd.grad`` for gradients known to fit; checking them loads PyTorch's symbolic shapes and sympy."""
    return run_backward(outputs, tangents, inputs, create_graph, create_graph)


def run_backward(
    outputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    retain_graph: bool,
    create_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of ``inputs``, None for those that the backward does not come to."""
    run = torch.autograd.graph._engine_run_backward
    return run(tuple(outputs), tuple(tangents), retain_graph, create_graph, tuple(inputs), True, accumulate_grad=False)


def unchecked_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The C++ ``apply`` of a custom function, without what Python asks first in versions that ask there."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def context_class(function: type[torch.autograd.Function]) -> type:
    """The class of what a custom function's ``forward`` and ``backward`` are given."""
    cls: type = function._backward_cls
    return cls


def graph_is_retained() -> bool:
    """Whether the backward that runs keeps its graph for another one."""
    return bool(_C._autograd._get_current_graph_task_keep_graph())


def next_autograd_number() -> int:
    """The number autograd gives to the next node it makes in this thread."""
    number: int = _C._autograd._get_sequence_nr()
    return number


def running_autograd_number() -> int | None:
    """The number of the node whose backward runs now."""
    node = _C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def running_autograd_name() -> str | None:
    """The name of the node whose backward runs now."""
    node = _C._current_autograd_node()
    return None if node is None else str(node.name())


def release_saved_tensors(context: Any) -> None:
    """Let go of what a node has saved, unless the backward that runs retains its graph."""
    context.maybe_clear_saved_tensors()


def without_saved_tensor_hooks() -> AbstractContextManager[None]:
    """Keep the user's saved-tensor hooks from seeing fake tensors: the innermost pair of hooks is the one used."""
    if _C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def is_fake(tensor: torch.Tensor) -> bool:
    """PyTorch's fake tensors and thin ones know where factories make more of their kind."""
    return hasattr(tensor, "fake_mode")


def is_plain_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no more than elements in memory: no subclass, no other layout, nothing put off."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        and not torch._is_functional_tensor(tensor)
        and not _C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether sizes and strides say where a tensor's elements are: not sparse, nested or quantized."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are in memory as they are: not sparse, not batched, nothing put off."""
    return _C._has_storage(tensor) and not (
        tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor() or torch._is_functional_tensor(tensor)
    )


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for many in ``vmap``, the present one or the one of ``is_grads_batched``."""
    return _C._functorch.is_batchedtensor(tensor) or _C._functorch.is_legacy_batchedtensor(tensor)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with nothing put off: conjugated, negated and filled with zeros in memory."""
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.clone() if tensor._is_zerotensor() else tensor


def is_composite(operation: Any) -> bool:
    """Whether an operation is, on every device, made of others."""
    has_kernel, name = _C._dispatch_has_kernel_for_dispatch_key, operation.name()
    if not _C._dispatch_has_kernel(name):  # a question such as ``aten::size``, which C++ asks a tensor
        return False
    return has_kernel(name, "CompositeImplicitAutograd") and not (has_kernel(name, "CPU") or has_kernel(name, "CUDA"))


def with_index(device: torch.device) -> torch.device:
    """The device itself where only its kind is named."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def attention_choice(*args: Any, **kwargs: Any) -> int:
    """Which kernel scaled dot-product attention takes."""
    return int(torch._fused_sdp_choice(*args, **kwargs))


def storage_identity(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata


# The same for real tensors, in C where PyTorch has it.
storage_of: Callable[[torch.Tensor], int] = getattr(_C, "_storage_id", storage_identity)


def fake_like(tensor: torch.Tensor) -> torch.Tensor:
    """Another fake tensor of the same mode with the same sizes, strides and dtype."""
    with tensor.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def fake_with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A fake of its own with the same sizes and the given strides, made without being recorded."""
    with no_modes():
        mode = tensor.fake_mode  # type: ignore[attr-defined]
        with mode:
            empty = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return from_functional(empty)  # functionalization, when it is on, wraps what factories make


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Autocast remembers casted weights by tensor; traced fakes must not be found there later."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def tracing() -> Iterator[None]:
    """The state that programs on fakes run in: nothing outlives them, and views know how they were taken.

    Anomaly mode would look for NaN in tensors without data, and inference mode keeps autograd from looking at them.
    """
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with no_autocast_cache(), torch.inference_mode(False), _keep_view_operations(True):
            yield
    finally:
        torch.set_anomaly_enabled(*anomaly)


def wants_numbers(error: Exception) -> bool:
    """Whether C++ stumbled over symbolic sizes where it can take plain ones only."""
    return "with symbolic sizes/strides" in str(error) or "only concrete integers" in str(error)


# What autograd says where it refuses that a tensor is changed in place.
IN_PLACE_REFUSALS = ("modified inplace", "used in an in-place operation", "created in no_grad mode")


def is_refusal_of_autograd(error: BaseException | None) -> bool:
    """Whether an operation in place was refused by autograd, before it has written anything."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in IN_PLACE_REFUSALS)


def fake_tensor_errors() -> tuple[type[Exception], ...]:
    """What PyTorch's fake tensors raise when an operation needs data or has no shape rule."""
    from torch._subclasses import fake_tensor

    names = ("UnsupportedFakeTensorException", "DynamicOutputShapeException", "DataDependentOutputException")
    return tuple(getattr(fake_tensor, name) for name in names)


@functools.cache
def apply_binds_keywords() -> bool:
    """Whether ``Function.apply`` takes keywords for a forward with a ``setup_context``; older versions refuse them."""

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(x: int) -> int:
            return x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    try:
        Probe.apply(x=0)
    except TypeError:
        return False
    return True


def operation_state() -> tuple[Any, ...]:
    """The interpreter-wide state that decides which operations run for a program, and what they give."""
    backends = torch.backends
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_now(), torch.get_default_dtype(),
        torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _C._get_deterministic_fill_uninitialized_memory(),
        torch.get_float32_matmul_precision(), backends.mkldnn.enabled, backends.mkldnn.deterministic,
        backends.mha.get_fastpath_enabled(), backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled(),
        backends.cuda.mem_efficient_sdp_enabled(), backends.nnpack.is_available(),
        backends.opt_einsum.enabled, backends.opt_einsum.strategy,
    )  # fmt: skip


def scripted_from(function: Any) -> Callable[..., Any] | None:
    """The Python function that a TorchScript function was compiled from, which PyTorch notes for its compilers.

    One that was traced knows a single way through its Python function, which may have others.
    """
    original: Callable[..., Any] | None = getattr(function, "_torchdynamo_inline", None)
    return original if getattr(function, "__name__", None) == "ScriptFunction" else None


def gives_subclass(function: Any) -> bool:
    """Whether a function, given a tensor of a subclass without a handler of its own, gives results of that class."""
    return function not in torch.overrides.get_default_nowrap_functions()


def is_fx_symbolic_tracing() -> bool:
    """Whether ``torch.fx`` runs code on proxies; the function that tells so writes to the log."""
    state = vars(torch.fx._symbolic_trace)
    return bool(state["_is_fx_tracing_flag"] if "_is_fx_tracing_flag" in state else state["_get_is_fx_tracing"]())


_frame_strategies: Any = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)


def keep_torch_compile_out(function: Any) -> None:
    """Have PyTorch's compiler break at calls of a function; its code is another matter."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "it is compiled by bothways"


def keep_torch_compile_out_of(code: types.CodeType) -> None:
    """Have PyTorch's compiler, where it looks at every frame, leave this code alone and all that it calls."""
    if hasattr(_frame_strategies, "set_code_exec_strategy"):
        skip = _frame_strategies._FrameAction.SKIP
        _frame_strategies.set_code_exec_strategy(code, _frame_strategies._FrameExecStrategy(skip, skip))


def show_torch_compile_instead(function: Any, plain: Any) -> None:
    """Have PyTorch's compiler look at another function than the one that is called."""
    function._torchdynamo_inline = plain


def compiled_by_torch(target: Any) -> Any | None:
    """What ``torch.compile`` was given to make this function or module of; None for everything else."""
    if isinstance(target, torch.nn.Module):
        return vars(target)["_modules"].get("_orig_mod") if type(target).__name__ == "OptimizedModule" else None
    code = target.__code__ if isinstance(target, types.FunctionType) else None
    # ``functools.wraps`` copies the attribute to functions that do something of their own.
    if code is None or not code.co_filename.endswith(os.path.join("torch", "_dynamo", "eval_frame.py")):
        return None
    return None if "_torchdynamo_disable" in vars(target) else vars(target).get("_torchdynamo_orig_callable")


def innermost_dispatch_mode() -> Any:
    """The dispatch mode that sees an operation first."""
    return torch.utils._python_dispatch._get_current_dispatch_mode()


def caller_device() -> torch.device | None:
    """The default device, where the outermost of the active torch function modes chooses it."""
    mode = _C._get_function_stack_at(0) if function_mode_depth() else None
    return mode.device if isinstance(mode, torch.utils._device.DeviceContext) else None


def device_of_tensor_types() -> str:
    """Where ``torch.Tensor`` makes tensors, which ``torch.set_default_tensor_type`` says and no default device."""
    kind: str = _C._get_default_device()
    return kind


def version_of(tensor: torch.Tensor) -> int | None:
    """How often a tensor was changed in place; inference tensors do not count."""
    return None if tensor.is_inference() else tensor._version


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Say how often tensors were changed in place."""
    _C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def assert_async(condition: torch.Tensor, message: str) -> None:
    """An operation that fails where the one element of a tensor is false."""
    torch._assert_async(condition, message)


def refuses_leaf(error: BaseException) -> bool:
    """Whether autograd refuses to change a leaf, or a view of one, that asks for its gradient."""
    return "leaf Variable that requires grad" in str(error)


def forget_graph_text(name: str) -> None:
    """Let go of the text of a graph's code that is gone, by the name of the file that it pretends to be."""
    if name.startswith("<eval_with_key>"):
        linecache.cache.pop(name, None)
        texts = getattr(getattr(torch.fx.graph_module, "_loader", None), "eval_cache", {})
        texts.pop(name, None)
