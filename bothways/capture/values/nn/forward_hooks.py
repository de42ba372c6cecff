"""Forward hooks of modules: which ones there are, in order.

The numbers they are registered under are others for each module, and no guard is about them: a program depends on the
hooks alone, so that another module with hooks of the same code finds it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.guards import MEMBERS
from bothways.capture.guards.sources import VALUES, Attr, Item, Reading
from bothways.capture.standins.modules import by_number
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.nn.modules import ModuleValue


class ForwardHooks(Value):
    """What a module is asked for its hooks by, during one call."""

    def __init__(self, module: ModuleValue) -> None:
        self._module = module

    def python_type(self) -> type:
        return ForwardHooks

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.BoundBuiltin(self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        """``before`` and ``after`` forward: pairs of whether a hook takes keywords, and the hook."""
        holder = {"before": "_forward_pre_hooks", "after": "_forward_hooks"}[name]
        with_keywords = f"{holder}_with_kwargs"
        hooks, taking = self._untouched(tracer, holder), self._untouched(tracer, with_keywords)
        if hooks is None or taking is None:
            asked = [self._module.get_attr(tracer, each) for each in (holder, with_keywords)]
            return tracer.inline(by_number, asked, {})
        assert self._module.source is not None
        source, others = Attr(self._module.source, holder), Attr(self._module.source, with_keywords)
        if not hooks:
            tracer.guard("not {s0}", source)
            return TupleValue([])
        tracer.guard("type({s0}) is {c0}", source, OrderedDict)
        listed = Reading(source, VALUES)
        tracer.guard("len({s0}) == {c0}", listed, len(hooks))
        takes_keywords = tuple(number in taking for number in hooks)
        if taking:
            tracer.guard("type({s0}) is {c0}", others, OrderedDict)
            tracer.guard(MEMBERS, source, others, takes_keywords)
        else:
            tracer.guard("not {s0}", others)
        return TupleValue([
            TupleValue([ConstantValue(takes), tracer.wrap(hook, Item(listed, index))])
            for index, (takes, hook) in enumerate(zip(takes_keywords, hooks.values(), strict=True))
        ])  # fmt: skip

    def _untouched(self, tracer: Tracer, name: str) -> Any:
        """What the module has under a name, where captured code has not looked at it, and may not have changed it."""
        module = self._module
        hooks = None if module.source is None or name in module.attrs else module.instance_dict().get(name)
        return hooks if type(hooks) is OrderedDict and tracer.known(hooks) is None else None
