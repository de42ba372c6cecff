"""What an optimizer does otherwise in its first step than in all the others, which then need no other program.

An optimizer makes its state once in its life: that step is left to plain Python. To forget gradients is the same
whether or not there are any.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.calls import inline
from bothways.capture.standins.optimizers import asgd, asgd_together, forget_gradients, grouped, radam
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import HANDLERS, Handler, handles
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


READY = "_zero_grad_profile_name"  # what an optimizer has that is made
ZERO_GRAD: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)  # behind what keeps compilers from it


@handles(ZERO_GRAD)
def _zero_grad(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    function = library_function(tracer, ZERO_GRAD)
    bound = function.bind(tracer, [*args], kwargs)
    wanted = bound["set_to_none"].realize()
    if isinstance(wanted, ConstantValue) and wanted.content is True and _is_made_ready(bound["self"]):
        return tracer.inline(forget_gradients, [bound["self"]], {})
    return inline(tracer, function, [*args], kwargs)


def _is_made_ready(optimizer: Value) -> bool:
    """Whether it went through ``Optimizer.__init__``; of one that did not, ``zero_grad`` patches the class."""
    owner = optimizer.realize()
    return isinstance(owner, ObjectValue) and (READY in owner.attrs or hasattr(owner.obj, READY))


@handles(inspect.unwrap(torch.optim.LBFGS.step))
def _lbfgs(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    tracer.stop("closure", "LBFGS decides by losses and gradients how often it calls its closure")


@handles(torch_compat.group_tensors)
def _group_tensors(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    return tracer.inline(grouped, [*args], kwargs)


# What asks a counter which of two updates it makes -> what makes both and chooses.
UPDATES: dict[Any, Any] = {
    **dict.fromkeys(torch_compat.RADAM_UPDATES, radam),
    **dict(zip(torch_compat.ASGD_UPDATES, (asgd, asgd_together), strict=True)),
}


def _undecided(update: types.FunctionType, chooses: types.FunctionType) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        wanted = kwargs["differentiable"].realize() if "differentiable" in kwargs else None
        if isinstance(wanted, ConstantValue) and wanted.content is False:
            return tracer.inline(chooses, args, kwargs)
        # The gradient of what is not chosen may be no number.
        return inline(tracer, library_function(tracer, update), args, kwargs)

    return handler


HANDLERS.update({update: _undecided(update, chooses) for update, chooses in UPDATES.items()})


def _first_step(method: types.FunctionType) -> Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        tracer.running.note_update()
        optimizer = args[0].realize()
        state = protocols.get_attr(tracer, optimizer, "state")
        before = protocols.length(tracer, state)
        result = inline(tracer, library_function(tracer, method), args, kwargs)
        if optimizer.source is not None and (protocols.length(tracer, state) > before or _was_unchecked(optimizer)):
            tracer.stop("lazy_state", f"{optimizer.describe()} makes its state")
        return result

    return handler


def _was_unchecked(optimizer: Value) -> bool:
    """Whether this is the step in which an optimizer makes sure once that one operation can do its update."""
    assert isinstance(optimizer, ObjectValue)
    name = torch_compat.CHECKED_ONCE
    now = optimizer.attrs.get(name)
    return now is not None and bool(getattr(optimizer.obj, name, False)) != bool(now.realize().constant())


HANDLERS.update({
    method: _first_step(method)
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and isinstance(method := vars(kind).get("_init_group"), types.FunctionType)
})  # fmt: skip
