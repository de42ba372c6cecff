"""``nn.Module`` instances: parameters, buffers and submodules by name, and calls through their hooks.

Calling a module inlines its ``forward``; forward hooks are inlined around it, and backward hooks are attached after
the graph. Attribute assignment follows ``nn.Module.__setattr__``: buffers go to the buffer dictionary, plain values to
the instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.standins.modules import call_with_hooks
from bothways.capture.values.code.attributes import MISSING, lookup
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.class_guards import guard_class_says
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.nn.forward_hooks import ForwardHooks
from bothways.capture.values.nn.module_hooks import BackwardHookKinds, BackwardHooks, kinds_on
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# The dictionaries nn.Module.__getattr__ looks in, in its order.
MEMBER_DICTS = ("_parameters", "_buffers", "_modules")
# What modules are called and asked by; where one of them was replaced, it is inlined like any other method.
_OWN: dict[str, Any] = {
    name: lookup(torch.nn.Module, name)
    for name in ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__setattr__")
}
FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class ModuleValue(ObjectValue):
    """A module."""

    def __init__(
        self, cls: type, *, obj: object = MISSING, source: Source | None = None, payload: Value | None = None
    ) -> None:
        super().__init__(cls, obj=obj, source=source, payload=payload)
        self.registered: list[Value] = []  # backward hooks that captured code has registered

    @classmethod
    def external(cls, tracer: Tracer, module: torch.nn.Module, source: Source) -> ModuleValue:
        tracer.guard("type({s0}) is {c0}", source, type(module))
        tracer.symbols.meet_module(type(module), source)
        value = cls(type(module), obj=module, source=source)
        tracer.remember(module, value)
        return value

    def library_method(self, name: str, attribute: Any) -> bool:
        """``forward`` is the one method that people do replace on an instance."""
        return name != "forward" and super().library_method(name, attribute)

    def generic_get_attr(self, tracer: Tracer, name: str) -> Value:
        stored = name in self.attrs or self.source is None or name in self.instance_dict()
        if not stored and lookup(self.cls, name) is MISSING and lookup(self.cls, "__getattr__") is _OWN["__getattr__"]:
            for holder in MEMBER_DICTS:
                if name in self.instance_dict().get(holder, ()):
                    guard_class_says(tracer, self.cls, name, "__getattr__")
                    return self._member(tracer, holder, name)
        return super().generic_get_attr(tracer, name)

    def _member(self, tracer: Tracer, holder: str, name: str) -> Value:
        assert self.source is not None
        content = self.instance_dict()[holder]
        known = tracer.known(content)
        if known is not None and known.mutated:
            return known.get_item(tracer, ConstantValue(name))
        return tracer.member(content[name], Item(Attr(self.source, holder), name), "{c0} in {s0}")

    def missing_attr(self, tracer: Tracer, name: str, fallback: Any) -> Value:
        if fallback is not _OWN["__getattr__"]:
            return super().missing_attr(tracer, name, fallback)
        for holder in MEMBER_DICTS:
            if self._dict_has(tracer, holder, name):
                return self._member_dict(tracer, holder).get_item(tracer, ConstantValue(name))
        tracer.throw(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def _member_dict(self, tracer: Tracer, holder: str) -> Value:
        return super().generic_get_attr(tracer, holder).realize()

    def _dict_has(self, tracer: Tracer, holder: str, name: str) -> bool:
        if holder not in self.attrs and holder not in self.instance_dict():
            return False
        return self._member_dict(tracer, holder).contains(tracer, ConstantValue(name))

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if lookup(self.cls, "__setattr__") is not _OWN["__setattr__"]:
            super().set_attr(tracer, name, value)
            return
        guard_class_says(tracer, self.cls, "__setattr__")
        content = value.realize()
        if issubclass(content.python_type(), torch.nn.Parameter) or self._dict_has(tracer, "_parameters", name):
            self._set_parameter(tracer, name, content)
            return
        for holder, kind in (("_modules", torch.nn.Module), ("_buffers", torch.Tensor)):
            fits = issubclass(content.python_type(), kind) or content.python_type() is type(None)
            if self._dict_has(tracer, holder, name):
                if not fits:
                    tracer.stop("mutation_unknown", f"{name!r} is set to something that is no {kind.__name__}")
                self._member_dict(tracer, holder).set_item(tracer, ConstantValue(name), value)
                return
        if issubclass(content.python_type(), torch.nn.Module):
            self._member_dict(tracer, "_modules").set_item(tracer, ConstantValue(name), value)
            return
        self.generic_set_attr(tracer, name, value)

    def _set_parameter(self, tracer: Tracer, name: str, content: Value) -> None:
        """Make something the parameter of that name, where nothing else has the name and ``__setattr__`` agrees."""
        if not issubclass(content.python_type(), (torch.nn.Parameter, type(None))):
            tracer.stop("mutation_unknown", f"the parameter {name!r} is set to something that is none")
        others = any(self._dict_has(tracer, holder, name) for holder in ("_buffers", "_modules"))
        if others or (name not in self.attrs and name in self.instance_dict()) or self.attrs.get(name) is not None:
            tracer.stop("mutation_unknown", f"{name!r} becomes a parameter inside the function")
        if not self._has_members(tracer):
            tracer.throw(AttributeError, "cannot assign parameters before Module.__init__() call")
        self._member_dict(tracer, "_parameters").set_item(tracer, ConstantValue(name), content)

    def _has_members(self, tracer: Tracer) -> bool:
        return "_parameters" in self.attrs or "_parameters" in self.instance_dict()

    def del_attr(self, tracer: Tracer, name: str) -> None:
        for holder in MEMBER_DICTS:
            if self._dict_has(tracer, holder, name):
                self._member_dict(tracer, holder).del_item(tracer, ConstantValue(name))
                return
        self.generic_set_attr(tracer, name, None)

    # Calls.

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        custom = lookup(self.cls, "__call__")
        # A GraphModule's own __call__ only adds to tracebacks.
        plain = issubclass(self.cls, torch.fx.GraphModule) or hasattr(custom, "__bothways__")
        tracer.definitions.meet(self.cls)
        guard_class_says(tracer, self.cls, "__call__")
        is_patched = any(lookup(torch.nn.Module, name) is not own for name, own in _OWN.items())
        if is_patched or (custom is not _OWN["__call__"] and not plain):
            return super().call(tracer, args, kwargs)
        self._stop_at_global_hooks(tracer)
        self._stop_at_first_call(tracer)
        backward = kinds_on(tracer, self)
        if self._has_forward_hooks(tracer) or backward != BackwardHookKinds():
            packed = DictValue.from_pairs(tracer, [(ConstantValue(k), v) for k, v in kwargs.items()])
            hooks = ConstantValue(None) if backward == BackwardHookKinds() else BackwardHooks(self, backward)
            return tracer.inline(call_with_hooks, [self, TupleValue(list(args)), packed, ForwardHooks(self), hooks], {})
        return protocols.call(tracer, self.get_attr(tracer, "forward"), args, kwargs)

    def _stop_at_global_hooks(self, tracer: Tracer) -> None:
        hooks = torch_compat.global_module_hooks()
        if any(hooks[name] for name in torch_compat.GLOBAL_FORWARD_HOOKS):
            tracer.stop("hook", "forward hooks are registered for all modules")
        globals_ = tracer.globals_source(hooks)
        for name in torch_compat.GLOBAL_FORWARD_HOOKS:
            tracer.guard("not {s0}", Item(globals_, name))

    def _stop_at_first_call(self, tracer: Tracer) -> None:
        """A lazy module makes its parameters when it is called for the first time."""
        lazy = self.obj
        waiting = torch_compat.LAZY_MODULE_WAITING
        if isinstance(lazy, torch.nn.modules.lazy.LazyModuleMixin) and waiting in self.instance_dict():
            tracer.guard("{c0} in {s0}.__dict__", self.source, waiting)
            tracer.stop("lazy_module", f"{self.describe()} does not know its sizes yet")

    def _has_forward_hooks(self, tracer: Tracer) -> bool:
        has_hooks = False
        for name in FORWARD_HOOKS:
            if self._hooks(name):
                has_hooks = True
            elif self.source is not None:
                tracer.guard("not {s0}", Attr(self.source, name))
        return has_hooks

    def _hooks(self, name: str) -> Any:
        if self.source is None:
            return None
        return self.instance_dict().get(name)
