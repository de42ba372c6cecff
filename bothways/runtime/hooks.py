"""What programs with hooks call when they run: late hooks, hooks of modules and of saved tensors, anomaly mode.

Some stand in graphs (``in_graphs``): a differentiator leaves them, or what lies between them, as they were captured.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.hooks import BackwardHook, RemovableHandle

from bothways import torch_compat
from bothways.node_facts import Region, in_graphs
from bothways.runtime.acts import act


class HookSite:
    """One place where captured code registers hooks; ``run``, once there is one, is the compiled function that runs
    them."""

    def __init__(self) -> None:
        self.run: Any = None


class StandsForHook:
    """What is registered in place of a hook of the user's; None for one that has not come yet."""

    hook: Callable[..., Any] | None


def hook_behind(hook: Any) -> Any:
    """The user's own hook."""
    while isinstance(hook, StandsForHook):
        hook = no_hook if hook.hook is None else hook.hook
    return hook


def no_hook(*gradients: Any) -> None:
    """What a hook does that no program has named."""


class LateHook(StandsForHook):
    """A hook whose place is taken while the graph runs; the program says afterwards what it does."""

    def __init__(self) -> None:
        self.hook = None
        self.handle: RemovableHandle | None = None

    def __call__(self, *args: Any) -> Any:
        return None if self.hook is None else self.hook(*args)


@in_graphs(opaque=True)
class RegisterEarly:
    """Takes the place of a hook on a tensor that is changed in place later: ``path`` leads to the method."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.__name__ = self.__qualname__ = path
        self.__module__ = __name__

    def __call__(self, tensor: torch.Tensor) -> LateHook:
        late = LateHook()
        late.handle = operator.attrgetter(self.path)(tensor)(late)
        return late


@in_graphs(opaque=True)
class RegisterManyEarly:
    """The same for ``register_multi_grad_hook``."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.__name__ = self.__qualname__ = "register_multi_grad_hook"
        self.__module__ = __name__

    def __call__(self, *tensors: torch.Tensor) -> LateHook:
        late = LateHook()
        late.handle = torch.autograd.graph.register_multi_grad_hook(tensors, late, mode=self.mode)  # type: ignore[arg-type]
        return late


@in_graphs(opaque=True)
def retain_early(tensor: torch.Tensor) -> None:
    """``retain_grad`` while the graph runs."""
    tensor.retain_grad()


@in_graphs(opaque=True)
def hold_grad_fn(tensor: torch.Tensor) -> tuple[Any, Any]:
    """A tensor's autograd node as it is now, and something that keeps the node alive: Python's part of it does not."""
    with torch.enable_grad():
        return tensor.grad_fn, tensor.view_as(tensor).grad_fn


def is_of_tensor(handle: Any, *modules: torch.nn.Module) -> bool:
    """Whether a handle's hook is on none of the modules, nor on all of them."""
    hooks = handle.hooks_dict_ref()
    state = torch_compat.global_module_hooks()
    dictionaries = [state[name] for name in (*torch_compat.GLOBAL_FORWARD_HOOKS, *torch_compat.GLOBAL_BACKWARD_HOOKS)]
    for module in modules:
        dictionaries += [value for value in vars(module).values() if isinstance(value, dict)]
    return hooks is None or all(hooks is not known for known in dictionaries)


# Backward hooks of modules.


@in_graphs(opaque=True)
def lead_through(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same tensors behind one autograd node, as nn.Module does it for its hooks."""
    led: tuple[torch.Tensor, ...] = torch_compat.BackwardHookFunction.apply(*tensors)
    return led


class PlacedHook(BackwardHook):
    """PyTorch's own bookkeeping for a module's backward hooks, on identity nodes that the graph has placed already."""

    def __init__(self, module: torch.nn.Module, hooks: list[Any], pre_hooks: list[Any]) -> None:
        super().__init__(module, hooks, pre_hooks)
        self.grad_fn: Any = None
        self.places: Sequence[int] = ()

    def _apply_on_tensors(self, fn: Callable[[Any], None], args: Any) -> tuple[Any, Any]:
        if self.grad_fn is None:
            return args, None
        fn(self.grad_fn)
        return args, list(self.places)

    def on_inputs(self, grad_fn: Any, places: Sequence[int], count: int) -> None:
        """Use the node that the module's inputs went through; None stands for inputs without gradients."""
        self.grad_fn, self.places = grad_fn, places
        self.setup_input_hook((None,) * count)

    def on_outputs(self, grad_fn: Any, places: Sequence[int], count: int) -> None:
        self.grad_fn, self.places = grad_fn, places
        self.setup_output_hook((None,) * count)


def place_hook(module: torch.nn.Module, full: list[Any], pre: list[Any], inputs: Any, outputs: Any) -> None:
    """Attach backward hooks; ``inputs`` and ``outputs`` are (node, places of the tensors, number of values)."""
    hook = PlacedHook(module, full, pre)
    hook.on_inputs(*inputs)
    hook.on_outputs(*outputs)


def hook_last_node(module: torch.nn.Module, hooks: list[Any], args: Any, result: Any, first: torch.Tensor) -> None:
    """Attach the deprecated kind of backward hook to the operation that computed the module's first result."""
    if first.grad_fn is not None:
        for hook in hooks:
            first.grad_fn.register_hook(torch_compat.HookOfModule(hook, module))
        torch_compat.warn_of_partial_hook(module, args, result, first.grad_fn)


# Saved-tensor hooks.


@in_graphs(region=Region.BEGIN)
def push_saved_tensors_hooks(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    torch_compat.push_saved_tensors_hooks(pack, unpack)


@in_graphs(region=Region.BEGIN, has_effects=True)
def push_users_hooks(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    """Hooks that may have effects: running the graph twice is not running it once."""
    act()
    torch_compat.push_saved_tensors_hooks(pack, unpack)


@in_graphs(region=Region.END)
def pop_saved_tensors_hooks(pushed: None) -> None:
    torch_compat.pop_saved_tensors_hooks()


@in_graphs(region=Region.BEGIN)
def disable_saved_tensors_hooks(message: str) -> str | None:
    before = torch_compat.saved_tensors_hooks_disabled()
    try:
        torch_compat.disable_saved_tensors_hooks(message)
    except BaseException:
        restore_saved_tensors_hooks(before)
        raise
    return before


@in_graphs(region=Region.END)
def restore_saved_tensors_hooks(before: str | None) -> None:
    if before is None:
        torch_compat.enable_saved_tensors_hooks()
    else:
        torch_compat.disable_saved_tensors_hooks(before)


# Anomaly mode.

Anomaly = tuple[bool, bool]


@in_graphs(opaque=True)
def anomaly_state() -> Anomaly:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


@in_graphs(region=Region.BEGIN)
def set_anomaly(enabled: bool, check_nan: bool) -> Anomaly:
    before = anomaly_state()
    torch.set_anomaly_enabled(enabled, check_nan)
    return before


@in_graphs(region=Region.END)
def restore_anomaly(before: Anomaly) -> None:
    torch.set_anomaly_enabled(*before)


@in_graphs(opaque=True)
class WarnAt:
    """A warning that library code gives at a line of the user's."""

    def __init__(self, message: str, filename: str, line: int, globals_: dict[str, Any]) -> None:
        self.message, self.filename, self.line, self.globals = message, filename, line, globals_
        self.__name__ = self.__qualname__ = "warn"
        self.__module__ = __name__

    def __call__(self) -> None:
        registry = self.globals.setdefault("__warningregistry__", {})
        module = self.globals.get("__name__")
        warnings.warn_explicit(self.message, UserWarning, self.filename, self.line, module, registry)
