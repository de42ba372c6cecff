"""Hooks registered inside a compiled function, on tensors, on their autograd nodes, or on several tensors at once.

A hook only matters when a backward runs, so it is registered for real after the graph has run, on the very
tensor and in the same order; it then runs as the user's Python at its moment. The tensor becomes an output of
the graph, marked as watched: a differentiator must not pull its other uses into one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from bothways import torch_compat
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.tensors.moments import TensorMoment, act_at, result_of
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.errors import Break, Unsupported
from bothways.node_facts import Watched
from bothways.runtime.hooks import HookSite, RegisterEarly, RegisterManyEarly, is_of_tensor, retain_early
from bothways.runtime.program import COMPILED_HOOK

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# Method -> what eager says about a tensor that needs no gradient.
REFUSALS: dict[str, str] = {
    "register_hook": "cannot register a hook on a tensor that doesn't require gradient",
    "register_post_accumulate_grad_hook": "cannot register a hook on a tensor that doesn't require gradient",
    "retain_grad": "can't retain_grad on Tensor that has requires_grad=False",
}


@dataclass(frozen=True)
class RegistrationPlace:
    """Where a hook goes: the call as a program writes it after the graph, and as a node of the graph makes it."""

    moments: tuple[TensorMoment, ...]
    write: Callable[[Emitter, list[str], str], str]  # given the names of the tensors and the hook's text
    early: Any
    path: str  # the method that registers it, of the tensor or of its grad_fn
    handle: type = RemovableHandle
    captured: bool = False  # whether fullgraph=True holds for what the hook does


def on_tensor(moment: TensorMoment, path: str) -> RegistrationPlace:
    """``tensor.path(hook)``; ``path`` is a method of the tensor or of its grad_fn."""
    early = retain_early if path == "retain_grad" else RegisterEarly(path)
    captured = path == "register_hook" and not moment.is_input
    return RegistrationPlace(
        (moment,), lambda emitter, names, hook: f"{names[0]}.{path}({hook})", early, path, captured=captured
    )


class Event(Value):
    """Something that is done after the graph has run, in the order in which captured code did it."""

    only_registers = True
    two_phase = True  # what its text refers to is filled in once the event itself is written
    emitted = False
    earlier: Event | None = None
    retains: TensorValue | None = None  # whose gradient is kept from then on

    def emit_effects(self, emitter: Emitter) -> None:
        emitter.rebuild(self)

    def emit_earlier(self, emitter: Emitter) -> None:
        """See to it that what came before is written before; a loop, as there may be thousands."""
        self.emitted = True
        waiting: list[Event] = []
        step = self.earlier
        while step is not None and not step.emitted:
            waiting.append(step)
            step = step.earlier
        for event in reversed(waiting):
            event.emit_effects(emitter)


def happen(tracer: Tracer, event: Event) -> None:
    """Add an event to those that follow the graph."""
    event.earlier = tracer.effects.registrations[-1] if tracer.effects.registrations else None
    tracer.effects.register(event)
    tracer.effects.mutated(event)


class HandleEvent(Event):
    """A registration, which is also the handle that captured code got for it."""

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("remove", "__enter__", "__exit__"):
            return linked.BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "__enter__":
            return self
        if name in ("remove", "__exit__"):
            self.remove(tracer)
            return ConstantValue(None)
        return super().call_method(tracer, name, args, kwargs)

    def remove(self, tracer: Tracer) -> None:
        raise AssertionError(f"{type(self).__name__} cannot be removed")

    def name_hint(self) -> str:
        return "handle"


class Registration(HandleEvent):
    """One call of a registering method, and the handle it returns."""

    def __init__(self, place: RegistrationPlace, args: Args) -> None:
        self.place, self.args = place, args
        self.retains = place.moments[0].tensor if place.early is retain_early else None
        self.removed = False
        self.done = False  # the backward that it was for is in the graph
        self._early: torch.fx.Node | None = None

    def python_type(self) -> type:
        return self.place.handle

    def remove(self, tracer: Tracer) -> None:
        self.removed = True  # a hook that was there for a while, and for no backward, was never there

    def parts(self) -> Iterable[Value]:
        return [*(moment.tensor for moment in self.place.moments), *self.args]

    def rebuild_empty(self, emitter: Emitter) -> str:
        self.emit_earlier(emitter)
        hook = self._hook(emitter)
        if not any(moment.has_passed(emitter.tracer) for moment in self.place.moments):
            tensors = [moment.tensor for moment in self.place.moments]
            names = [emitter.rebuild(tensor) for tensor in tensors]
            for tensor, name in zip(tensors, names, strict=True):
                if tensor.source is not None and "requires_grad" in tensor.attrs:
                    emitter.build(f"{name}.requires_grad = True")  # as it was then, whatever it is in the end
            return self.place.write(emitter, names, hook)
        self._early = act_at(emitter.tracer, self.place.moments, self._moment_before(), self.place.early)
        if not self.args:
            return "None"
        late = result_of(emitter, self._early, "late")
        emitter.build(f"{late}.hook = {hook}")
        return f"{late}.handle"

    def fill(self, emitter: Emitter, name: str) -> None:
        if self.removed:
            emitter.build(f"{name}.remove()")

    def _hook(self, emitter: Emitter) -> str:
        text = emitter.rebuild_all(self.args)
        if emitter.tracer.options.fullgraph and self.place.captured:
            return f"{COMPILED_HOOK}({emitter.inject(HookSite(), 'hooks_here')}, {text})"
        return text

    def _moment_before(self) -> torch.fx.Node:
        """The node of the graph that this one follows: the last one then, or the hook registered before."""
        last = self.place.moments[0].last
        before = self.earlier
        if isinstance(before, Registration) and before._early is not None and before.place.moments[0].last is last:
            return before._early
        return last

    def emit_effects(self, emitter: Emitter) -> None:
        if not self.removed and not self.done:
            emitter.rebuild(self)


class Removal(Event):
    """Removing a hook that others than the captured function's own tensors have."""

    def __init__(self, handle: Value) -> None:
        self.handle = handle

    def python_type(self) -> type:
        return type(None)

    def parts(self) -> Iterable[Value]:
        return [self.handle]

    def rebuild_empty(self, emitter: Emitter) -> str:
        self.emit_earlier(emitter)
        return f"{emitter.rebuild(self.handle)}.remove()"


@handles(RemovableHandle.remove)
def _remove(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """``handle.remove()`` of a handle from outside, in order with other hooks; no module called here may have it."""
    handle = args[0].realize()
    if handle.source is None or handle.mutated:
        tracer.stop("hook", "a handle is removed that was made or changed inside the function")
    where, stack = tracer.where(), tracer.stack()

    def check() -> None:
        known = [(obj, value) for obj, value in tracer.known_objects() if isinstance(obj, torch.nn.Module)]
        modules = [(obj, value.source) for obj, value in known if value.source is not None]
        if not is_of_tensor(tracer.object_of(handle), *(obj for obj, _ in modules)):
            reason = "a hook of a module is removed that the function may call"
            raise Unsupported(Break("hook", reason, where, stack))
        slots = ", ".join(f"{{s{index}}}" for index in range(len(modules) + 1))
        tracer.guard(f"{{c0}}({slots})", is_of_tensor, handle.source, *(source for _, source in modules))

    tracer.assumptions.check_at_end(check)
    happen(tracer, Removal(handle))
    return ConstantValue(None)


def register(tracer: Tracer, place: RegistrationPlace, args: Args) -> Registration:
    """Register a hook; the Value of its handle."""
    registration = Registration(place, list(args))
    happen(tracer, registration)
    return registration


def register_on_tensor(tracer: Tracer, tensor: TensorValue, method: str, args: Args) -> Value:
    """``tensor.register_hook(hook)`` and its like."""
    if len(args) != (method != "retain_grad"):
        tracer.stop("hook", f"Tensor.{method} is called with {len(args)} arguments")
    if not tensor.fake.requires_grad:
        tracer.throw(RuntimeError, REFUSALS[method])
    if method == "register_post_accumulate_grad_hook" and not tensor.fake.meta.is_leaf:
        tracer.throw(RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors")
    registration = register(tracer, on_tensor(TensorMoment.now(tracer, tensor), method), args)
    tracer.graph.watch(tensor, Watched.GRADIENT)
    return ConstantValue(None) if method == "retain_grad" else registration


def _unbound(method: str) -> None:
    """``torch.Tensor.register_hook(tensor, hook)``."""

    @handles(getattr(torch.Tensor, method))
    def handler(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        return protocols.call(tracer, protocols.get_attr(tracer, args[0], method), list(args[1:]), kwargs)


for _method in ("register_hook", "register_post_accumulate_grad_hook"):
    _unbound(_method)


@handles(torch.autograd.graph.register_multi_grad_hook)
def _register_multi_grad_hook(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return _on_many(tracer, *args, **kwargs)


def _on_many(tracer: Tracer, tensors: Value, fn: Value, *, mode: Value | None = None) -> Value:
    """``register_multi_grad_hook(tensors, fn, mode=…)``, on tensors that all need gradients."""
    kind = "all" if mode is None else protocols.as_constant(tracer, mode)
    values = [tensor.realize() for tensor in protocols.unpack(tracer, tensors)]
    moments = []
    for tensor in values:
        if not isinstance(tensor, TensorValue) or not tensor.fake.requires_grad:
            tracer.stop("hook", "register_multi_grad_hook is given something that needs no gradient")
        moments.append(TensorMoment.now(tracer, tensor))
        moments[-1].watch_node()
    if kind not in ("all", "any") or not moments:
        tracer.stop("hook", f"register_multi_grad_hook is called with mode {kind!r} and {len(moments)} tensors")

    def write(emitter: Emitter, names: list[str], hook: str) -> str:
        function = emitter.inject(torch.autograd.graph.register_multi_grad_hook, "register_multi_grad_hook")
        return f"{function}([{', '.join(names)}], {hook}, mode={kind!r})"

    early, path = RegisterManyEarly(kind), "register_multi_grad_hook"
    place = RegistrationPlace(tuple(moments), write, early, path, torch_compat.MULTI_HANDLE)
    return register(tracer, place, [fn])
