"""What people put in the way of PyTorch's functions: function modes, and tensor classes with ``__torch_function__``.

An operation that one of them overrides is not recorded; the handler is inlined, as eager would call it: the
innermost mode first, without itself, then the classes of the arguments. What none of them takes goes into the graph.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.guards.sources import Item
from bothways.capture.overrides.override_probe import OverrideRequest, ask
from bothways.capture.values.code.attributes import MISSING, bind_class_attribute, is_data_descriptor, lookup
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.class_guards import guard_class_lacks
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue
    from bothways.capture.writing.emit import Emitter

PLAIN_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
PASSED = object()  # no override: the operation is done as it is


class ModeStack:
    """The function modes that are active when a program begins, as guards and programs read them."""

    def __getitem__(self, index: int) -> Any:
        return torch_compat.function_mode_at(index)


MODE_STACK = ModeStack()


class Overrides:
    """What overrides operations in a capture: modes from outside and from inside, and which of them are heeded."""

    def __init__(self) -> None:
        self.modes: list[Value] = []  # the innermost last
        self.state: Any = torch_compat.OverrideState.ENABLED
        self.met_subclass = False  # whether a tensor of a class of the user's takes part
        self.is_patched = False  # whether ``torch.Tensor`` has methods that are not PyTorch's
        self.state_at_entry = self.state
        self._at_entry: list[Value] = []
        self._below = 0  # modes that are not ours to look at: the one that chooses the default device

    def begin(self, tracer: Tracer, state: Any) -> None:
        """Take over the caller's modes, the default device's aside, which is at the bottom of the stack."""
        self.state = self.state_at_entry = state
        self.is_patched = bool(tracer.definitions.patched)
        self._below = int(torch_compat.caller_device() is not None)
        stack = tracer.inject(MODE_STACK, "torch function modes")
        places = range(self._below, torch_compat.function_mode_depth())
        self._at_entry = [tracer.wrap(MODE_STACK[place], Item(stack, place)) for place in places]
        self.modes = list(self._at_entry)

    def enter(self, mode: Value) -> None:
        """A mode is the innermost from now on."""
        self.modes.append(mode)

    def leave(self) -> Value:
        """The innermost mode, which is none from now on."""
        return self.modes.pop()

    def switch(self, state: Any) -> Any:
        """Heed from now on what ``state`` says; what was heeded before."""
        before, self.state = self.state, state
        return before

    def meet_subclass(self) -> None:
        """A tensor of a class of the user's takes part."""
        self.met_subclass = True

    @property
    def heeds_modes(self) -> bool:
        return bool(self.modes) and self.state != torch_compat.OverrideState.ALL_DISABLED

    @property
    def idle(self) -> bool:
        return not self.modes and not self.met_subclass

    @property
    def leaves_tensors_alone(self) -> bool:
        """Whether attributes of tensors are PyTorch's own, and no handler sees who asks for them."""
        return self.idle and not self.is_patched

    @property
    def must_not_see(self) -> bool:
        """Whether the program must keep the user's handlers from seeing its guards, its graph and its effects."""
        return bool(self._at_entry) or self.met_subclass

    def may_apply_to(self, values: Iterable[Value]) -> bool:
        """Whether a mode or a class may override a call with these arguments; looks at those that might."""
        overriders = [value for value in values if value.overrides_functions()]
        return self.heeds_modes or (bool(overriders) and self.state == torch_compat.OverrideState.ENABLED)

    def refuse_modes(self, tracer: Tracer, what: str) -> None:
        """Stop where code would run that modes see and a graph does not show."""
        if self.heeds_modes:
            tracer.stop("torch_mode", f"{what} runs while a function mode is active")

    def changes(self, emitter: Emitter) -> list[str]:
        """The statements that leave behind the modes that are active where the program ends."""
        same = 0
        for before, after in zip(self._at_entry, self.modes, strict=False):
            if before.realize() is not after.realize():
                break
            same += 1
        pop = f"{emitter.inject(torch_compat.pop_function_mode, 'pop_function_mode')}()"
        push = emitter.inject(torch_compat.push_function_mode, "push_function_mode")
        return [pop] * (len(self._at_entry) - same) + [f"{push}({emitter.rebuild(mode)})" for mode in self.modes[same:]]


def overrides_functions(cls: type) -> bool:
    """Whether operations on tensors of this class go to its ``__torch_function__``."""
    handler: Any = getattr(cls, "__torch_function__", None)
    return cls not in PLAIN_CLASSES and handler is not torch_compat.disabled_torch_function


def has_handler(cls: type) -> bool:
    """The same for any class: objects that are no tensors may have a ``__torch_function__``, too."""
    return hasattr(cls, "__torch_function__") and overrides_functions(cls)


def without_class(tensor: torch.Tensor) -> torch.Tensor:
    """What a graph is given for a tensor: one whose class has no say, now or in the backward."""
    return tensor.as_subclass(torch.Tensor) if overrides_functions(type(tensor)) else tensor


def overridden(tracer: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs | None = None) -> Any:
    """The result that a handler gives for a call of a function in C, or PASSED."""
    kwargs = kwargs or {}
    if not tracer.overrides.may_apply_to([*args, *kwargs.values()]):
        return PASSED
    request = ask(tracer, function, args, kwargs)
    if request is None or not _is_meant(tracer, request.types):
        return PASSED
    return handle(tracer, request)


def _is_meant(tracer: Tracer, types_: tuple[type, ...]) -> bool:
    """Whether a request has a handler; plain classes are named in it, too, and override nothing."""
    return tracer.overrides.heeds_modes or not PLAIN_CLASSES.issuperset(types_)


def handle(tracer: Tracer, request: OverrideRequest) -> Value:
    """Call the handlers of a request, until one does not give NotImplemented."""
    overrides = tracer.overrides
    classes: list[Value] = [ClassValue.of(tracer, cls) for cls in request.types]
    arguments = [request.function, TupleValue(classes), *request.rest]
    if overrides.heeds_modes:
        mode = overrides.leave()
        try:
            result = protocols.call(tracer, protocols.get_attr(tracer, mode, "__torch_function__"), arguments).realize()
        finally:
            overrides.enter(mode)
        if not _is_not_implemented(result):
            return result
    if not classes:
        tracer.stop("torch_mode", "no function mode implements the call")
    for cls, kind in zip(classes, request.types, strict=True):
        if not isinstance(inspect.getattr_static(kind, "__torch_function__"), classmethod):
            tracer.stop("torch_mode", f"the __torch_function__ of {kind.__name__} is no class method")
        handler = protocols.get_attr(tracer, cls, "__torch_function__")
        result = protocols.call(tracer, handler, arguments).realize()
        if not _is_not_implemented(result):
            return result
    tracer.stop("torch_mode", "neither a function mode nor a class implements the call")


def _is_not_implemented(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.content is NotImplemented


def refuse_length(tracer: Tracer, value: Value) -> None:
    """Stop where Python asks for the length of what it iterates over, to make room, and a handler sees that."""
    overrides = tracer.overrides
    if not overrides.idle and isinstance(value.realize(), linked.TensorValue) and overrides.may_apply_to([value]):
        tracer.stop("torch_mode", "a container is made of a tensor whose length is overridden")


# Hooks for the slots of tensors.

Convert = Callable[["Tracer", Value], Any]


def slot(method: str, convert: Convert | None = None) -> Callable[[Any], Any]:
    """Give a slot of tensors that people can override by a class's own method or by a handler.

    ``convert`` makes of the result what the slot has to give.
    """

    def decorate(plain: Any) -> Any:
        @functools.wraps(plain)
        def run(self: TensorValue, tracer: Tracer, *args: Value) -> Any:
            args = tuple([arg.realize() for arg in args])
            if tracer.overrides.leaves_tensors_alone:
                return plain(self, tracer, *args)
            result = call_special(tracer, self, method, list(args))
            if result is PASSED:
                return plain(self, tracer, *args)
            return result if convert is None else convert(tracer, result)

        return run

    return decorate


def call_special(tracer: Tracer, tensor: TensorValue, method: str, args: Args) -> Any:
    """A special method of a tensor where its class, or an override, defines it; else PASSED."""
    own = own_attribute(tracer, tensor, method)
    if own is not None:
        return protocols.call(tracer, own, args)
    if not tracer.overrides.may_apply_to([tensor, *args]):
        return PASSED
    return call_tensor_method(tracer, method, [tensor, *args], {})


def call_tensor_method(tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Any:
    """A method of ``torch.Tensor`` itself, which may be overridden: those in Python ask by themselves."""
    method = getattr(torch.Tensor, name, None)
    if isinstance(method, types.FunctionType):
        return linked.inline_call(tracer, library_function(tracer, method), args, kwargs)
    if method is None:
        return ConstantValue(NotImplemented)
    return overridden(tracer, method, args, kwargs)


def own_attribute(tracer: Tracer, tensor: TensorValue, name: str) -> Value | None:
    """What a tensor's class defines under a name, above all that PyTorch defines, bound to the tensor."""
    if name in tracer.definitions.patched:
        return _patched(tracer, tensor, name)
    if tensor.cls in PLAIN_CLASSES:
        return None
    holder = next((base for base in tensor.cls.__mro__ if name in base.__dict__), None)
    if holder is None or policy.is_library_module(holder.__module__):
        guard_class_lacks(tracer, tensor.cls)
        return None
    return bind_class_attribute(tracer, tensor, tensor.cls, name, holder.__dict__[name])


def _patched(tracer: Tracer, tensor: TensorValue, name: str) -> Value | None:
    """What was put in the place of a method of tensors; what was there before counts as removed."""
    attribute = lookup(tensor.cls, name)
    if not isinstance(attribute, (types.FunctionType, property, staticmethod, classmethod)):
        tracer.stop("attribute_unknown", f"Tensor.{name} was replaced by {type(attribute).__name__}")
    return bind_class_attribute(tracer, tensor, tensor.cls, name, attribute)


def get_tensor_attr(tracer: Tracer, tensor: TensorValue, name: str) -> Any:
    """An attribute of a tensor where its class, or an override, defines it; else PASSED."""
    _refuse_hooks(tracer, tensor, "__getattribute__", "__getattr__")
    held = name in tensor.attrs or (tensor.obj is not None and name in tensor.obj.__dict__)
    attribute = lookup(tensor.cls, name)
    if attribute is MISSING or (held and not is_data_descriptor(attribute)):
        return PASSED
    own = own_attribute(tracer, tensor, name)
    if own is not None:
        return own
    if not tracer.overrides.may_apply_to([tensor]):
        return PASSED
    if isinstance(attribute, property) and attribute.fget is not None:
        return protocols.call(tracer, linked.library_value(tracer, attribute.fget), [tensor])
    if isinstance(attribute, types.GetSetDescriptorType):
        return overridden(tracer, getattr, [tensor, ConstantValue(name)])
    return PASSED


def set_tensor_attr(tracer: Tracer, tensor: TensorValue, name: str, value: Value) -> bool:
    """Whether an attribute of a tensor was set by its class's own setter, or by an override."""
    _refuse_hooks(tracer, tensor, "__setattr__")
    attribute = lookup(tensor.cls, name)
    if isinstance(attribute, property) and attribute.fset is not None:
        protocols.call(tracer, linked.library_value(tracer, attribute.fset), [tensor, value])
        return True
    if not isinstance(attribute, types.GetSetDescriptorType):
        return False
    return overridden(tracer, setattr, [tensor, ConstantValue(name), value]) is not PASSED


def _refuse_hooks(tracer: Tracer, tensor: TensorValue, *names: str) -> None:
    if tensor.cls in PLAIN_CLASSES:
        return
    if any(isinstance(lookup(tensor.cls, name), types.FunctionType) for name in names):
        tracer.stop("tensor_subclass", f"the class {tensor.cls.__name__} decides itself what its attributes are")
