"""Backward hooks of modules: the tensors that enter and leave the module pass through identity nodes of PyTorch's own.

The nodes run as captured; the hooks are attached to them after the graph, as they are registered when the call
happens. So a program depends on whether a module has backward hooks, not on which ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from bothways import torch_compat
from bothways.capture.guards.sources import Attr, Item
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.hooks.grad_fns import GradFnValue
from bothways.capture.values.hooks.hooks import Event, HandleEvent, Removal, happen
from bothways.capture.values.tensors.moments import TensorMoment
from bothways.capture.values.tensors.tensors import TensorValue, check_history
from bothways.runtime.hooks import hook_last_node, lead_through, place_hook

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.nn.modules import ModuleValue
    from bothways.capture.writing.emit import Emitter

FULL_HOOKS = {
    "full": ("_backward_hooks", "register_full_backward_hook"),
    "pre": ("_backward_pre_hooks", "register_full_backward_pre_hook"),
}
BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class BackwardHookKinds:
    """Which kinds of backward hooks there are: on a module, or on all of them."""

    pre: bool = False
    full: bool = False
    last: bool = False  # the deprecated ones, which look at the last operation only

    def __or__(self, other: BackwardHookKinds) -> BackwardHookKinds:
        return BackwardHookKinds(self.pre or other.pre, self.full or other.full, self.last or other.last)


def kinds_on(tracer: Tracer, module: ModuleValue) -> BackwardHookKinds:
    """What a call of the module has to look after; guarded."""
    return _global_kinds(tracer) | _own_kinds(tracer, module)


def _global_kinds(tracer: Tracer) -> BackwardHookKinds:
    state = torch_compat.global_module_hooks()
    globals_ = tracer.globals_source(state)
    pre, hooks = torch_compat.GLOBAL_BACKWARD_HOOKS
    for name in torch_compat.GLOBAL_BACKWARD_HOOKS:
        tracer.guard("{s0}" if state[name] else "not {s0}", Item(globals_, name))
    full = state["_global_is_full_backward_hook"]
    if state[hooks]:
        tracer.guard("{s0} is {c0}", Item(globals_, "_global_is_full_backward_hook"), full)
    any_hooks = bool(state[hooks])
    return BackwardHookKinds(bool(state[pre]), any_hooks and full is True, any_hooks and full is False)


def _own_kinds(tracer: Tracer, module: ModuleValue) -> BackwardHookKinds:
    if module.source is None:
        return BackwardHookKinds()
    content = module.instance_dict()
    for name in BACKWARD_HOOKS:
        known = tracer.known(content.get(name))
        if name in module.attrs or (known is not None and known.mutated):
            tracer.stop("hook", f"the backward hooks of {module.describe()} are changed inside the function")
        tracer.guard("{s0}" if content.get(name) else "not {s0}", Attr(module.source, name))
    pre, hooks = (bool(content.get(name)) for name in BACKWARD_HOOKS)
    full = content.get("_is_full_backward_hook")
    if hooks:
        tracer.guard("{s0} is {c0}", Attr(module.source, "_is_full_backward_hook"), full)
    return BackwardHookKinds(pre, hooks and full is True, hooks and full is False) | kinds_registered(module)


@dataclass(frozen=True)
class Side:
    """The tensors on one side of a module: the node they went through, their positions, the number of values."""

    grad_fn: GradFnValue | None
    places: tuple[int, ...]
    count: int
    tensors: tuple[TensorValue, ...] = ()  # behind the node

    def rebuild(self, emitter: Emitter) -> str:
        node = "None" if self.grad_fn is None else emitter.rebuild(self.grad_fn)
        return f"({node}, {self.places}, {self.count})"


class BackwardHooks(Value):
    """What stands between a module with backward hooks and its ``forward`` during one call."""

    def __init__(self, module: ModuleValue, kinds: BackwardHookKinds) -> None:
        self.module, self.kinds = module, kinds
        self._inputs = Side(None, (), 0)

    def python_type(self) -> type:
        return BackwardHooks

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.BoundBuiltin(self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "enter":
            return self._enter(tracer, args[0].realize())
        return self._leave(tracer, args[0].realize(), args[1].realize())

    def _enter(self, tracer: Tracer, args: Value) -> Value:
        if self.kinds.pre or self.kinds.full:
            args, self._inputs = self._placed(tracer, args)
        return args

    def _leave(self, tracer: Tracer, args: Value, result: Value) -> Value:
        if not isinstance(result, (TensorValue, TupleValue)):  # eager warns
            tracer.stop("hook", f"{self.module.describe()} has backward hooks and returns {result.describe()}")
        if self.kinds.pre or self.kinds.full:
            result, outputs = self._placed(tracer, result)
            if self._inputs.grad_fn is not None or outputs.grad_fn is not None:
                happen(tracer, ModuleHooked(self.module, self._inputs, outputs))
        if self.kinds.last:
            self._hook_last(tracer, args, result)
        return result

    def _placed(self, tracer: Tracer, value: Value) -> tuple[Value, Side]:
        """A tensor, or a tuple with tensors, led through one identity node if gradients will flow."""
        if not isinstance(value, TupleValue):
            (led,), side = _placed(tracer, [value])
            return led, side
        items, side = _placed(tracer, value.items_for_graph(tracer))
        if side.grad_fn is None:
            return value, side
        if value.kind is not tuple and not hasattr(value.kind, "_fields"):
            tracer.stop("hook", f"{self.module.describe()} has backward hooks and returns {value.describe()}")
        return TupleValue(items, value.kind), side

    def _hook_last(self, tracer: Tracer, args: Value, result: Value) -> None:
        """The deprecated hooks: on whatever operation computed the first tensor that is returned."""
        first = result
        while isinstance(first, TupleValue) and first.items:
            first = first.items_for_graph(tracer)[0].realize()
        if not isinstance(first, TensorValue):
            tracer.stop("hook", f"{self.module.describe()} has backward hooks and returns {result.describe()}")
        check_history(tracer, first)
        if first.fake.meta.grad_fn is None:
            return
        seen = [value.realize() for value in (*_items(args), *_items(result))]
        moments = [TensorMoment.now(tracer, value) for value in seen if isinstance(value, TensorValue)]
        for moment in moments:
            moment.watch_node()
        happen(tracer, LastNodeHooked(self.module, args, result, first, moments))


def _items(value: Value) -> list[Value]:
    return list(value.items) if isinstance(value, TupleValue) else [value]


def _placed(tracer: Tracer, values: list[Value]) -> tuple[list[Value], Side]:
    """The values with the tensors among them led through one identity node, if gradients will flow."""
    values = [value.realize() for value in values]
    places = [index for index, value in enumerate(values) if isinstance(value, TensorValue)]
    tensors: list[Any] = [values[index] for index in places]
    if not (torch.is_grad_enabled() and any(tensor.fake.requires_grad for tensor in tensors)):
        return values, Side(None, (), len(values))
    led = tracer.graph.op("call_function", lead_through, lead_through, list(tensors), {})
    assert isinstance(led, TupleValue)
    replaced = dict(zip(places, led.items, strict=True))
    first = next(value for value in led.items if isinstance(value, TensorValue) and value.fake.requires_grad)
    behind: Any = led.items
    side = Side(GradFnValue(tracer, TensorMoment.now(tracer, first)), tuple(places), len(values), tuple(behind))
    return [replaced.get(index, value) for index, value in enumerate(values)], side


class ModuleHooked(Event):
    """Attaching a module's full backward hooks to the nodes of one call."""

    def __init__(self, module: ModuleValue, inputs: Side, outputs: Side) -> None:
        self.module, self.inputs, self.outputs = module, inputs, outputs
        self.done = False  # the backward that it was for is in the graph
        self.gradients: Value | None = None  # those of the outputs, once that backward has come to the module

    def python_type(self) -> type:
        return type(None)

    def emit_effects(self, emitter: Emitter) -> None:
        if not self.done:
            super().emit_effects(emitter)

    def parts(self) -> Iterable[Value]:
        return [self.module, *(side.grad_fn for side in (self.inputs, self.outputs) if side.grad_fn is not None)]

    def rebuild_empty(self, emitter: Emitter) -> str:
        self.emit_earlier(emitter)
        module = emitter.rebuild(self.module)
        full = f"{emitter.inject(torch_compat.module_backward_hooks, 'backward_hooks')}({module})[0]"
        pre = f"{emitter.inject(torch_compat.module_backward_pre_hooks, 'backward_pre_hooks')}({module})"
        sides = f"{self.inputs.rebuild(emitter)}, {self.outputs.rebuild(emitter)}"
        return f"{emitter.inject(place_hook, 'place_hook')}({module}, {full}, {pre}, {sides})"


class LastNodeHooked(Event):
    """Attaching a module's deprecated backward hooks to the last operation of one call."""

    def __init__(
        self, module: ModuleValue, args: Value, result: Value, first: TensorValue, moments: list[TensorMoment]
    ) -> None:
        self.module, self.given, self.moments = module, [args, result, first], moments

    def python_type(self) -> type:
        return type(None)

    def parts(self) -> Iterable[Value]:
        return [self.module, *self.given]

    def rebuild_empty(self, emitter: Emitter) -> str:
        if any(moment.has_passed(emitter.tracer) for moment in self.moments):
            emitter.tracer.stop("hook", "tensors are changed in place after a module with a backward hook was called")
        self.emit_earlier(emitter)
        module = emitter.rebuild(self.module)
        hooks = f"{emitter.inject(torch_compat.module_backward_hooks, 'backward_hooks')}({module})[1]"
        function = emitter.inject(hook_last_node, "hook_last_node")
        return f"{function}({module}, {hooks}, {emitter.rebuild_all(self.given)})"


class ModuleRegistration(HandleEvent):
    """``module.register_full_backward_hook(hook)`` inside: done after the graph, in order with the module's calls."""

    def __init__(self, module: ModuleValue, method: str, args: Args, kwargs: Kwargs) -> None:
        self.module, self.method, self.args, self.kwargs = module, method, args, kwargs

    def python_type(self) -> type:
        return RemovableHandle

    def remove(self, tracer: Tracer) -> None:
        if self in self.module.registered:
            self.module.registered.remove(self)
            happen(tracer, Removal(self))

    def parts(self) -> Iterable[Value]:
        return [self.module, *self.args, *self.kwargs.values()]

    def rebuild_empty(self, emitter: Emitter) -> str:
        self.emit_earlier(emitter)
        arguments = [emitter.rebuild(value) for value in self.args]
        arguments += [f"{name}={emitter.rebuild(value)}" for name, value in self.kwargs.items()]
        return f"{emitter.rebuild(self.module)}.{self.method}({', '.join(arguments)})"


# Method of nn.Module -> the kind of hook it registers.
REGISTERING: dict[str, BackwardHookKinds] = {
    "register_full_backward_hook": BackwardHookKinds(full=True),
    "register_full_backward_pre_hook": BackwardHookKinds(pre=True),
    "register_backward_hook": BackwardHookKinds(last=True),
}


def _registering(method: str) -> None:
    @handles(getattr(torch.nn.Module, method))
    def register(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        return _register(tracer, args[0].realize(), method, list(args[1:]), dict(kwargs))


for _method in REGISTERING:
    _registering(_method)


def _register(tracer: Tracer, module: Value, method: str, args: Args, kwargs: Kwargs) -> Value:
    """Register a backward hook on a module from outside; what the function calls later has it."""
    if not isinstance(module, linked.ModuleValue) or module.source is None:
        tracer.stop("hook", f"a backward hook is registered on {module.describe()}, which was made inside")
    kinds, known = REGISTERING[method], kinds_registered(module)
    if kinds.full or kinds.last:
        before = module.instance_dict().get("_is_full_backward_hook")
        tracer.guard("{s0} is {c0}", Attr(module.source, "_is_full_backward_hook"), before)
        if before is kinds.last or (kinds.full and known.last) or (kinds.last and known.full):
            tracer.stop("hook", f"{module.describe()} has backward hooks of the other kind")
    registration = ModuleRegistration(module, method, args, kwargs)
    module.registered.append(registration)
    happen(tracer, registration)
    return registration


def hooks_of(tracer: Tracer, module: ModuleValue, kind: str) -> list[Value]:
    """The full backward hooks of a module, or those that come before them, in the order in which they are called."""
    name, method = FULL_HOOKS[kind]
    outside = protocols.call_attr(tracer, protocols.get_attr(tracer, module, name), "values")
    hooks = protocols.unpack(tracer, outside)
    for registered in module.registered:
        assert isinstance(registered, ModuleRegistration)
        if registered.method == method:
            if registered.kwargs or len(registered.args) != 1:
                tracer.stop("hook", "a backward hook of a module is registered before others")
            hooks.append(registered.args[0])
    return hooks


def kinds_registered(module: ModuleValue) -> BackwardHookKinds:
    """The kinds of the hooks that captured code has registered and not removed."""
    kinds = BackwardHookKinds()
    for registered in module.registered:
        assert isinstance(registered, ModuleRegistration)
        kinds = kinds | REGISTERING[registered.method]
    return kinds
