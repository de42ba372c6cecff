"""Custom functions that are applied at a break: ``forward`` is compiled for itself, and breaks where it has to.

A subclass with the compiled ``forward`` is applied in place of the user's class; results, contexts and nodes of the
autograd graph have the same names. It belongs to the user's class and goes with it.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat

# The attribute of the class of contexts, which PyTorch makes for each custom function, that holds the subclasses.
TWINS = "__bothways_twins__"


def is_apply(target: Any) -> bool:
    """Whether this is the ``apply`` of a custom function, bound to its class."""
    return (
        type(target) in torch_compat.BOUND_APPLY
        and isinstance(target.__self__, type)
        and issubclass(target.__self__, torch.autograd.Function)
        and torch_compat.bound_apply(target.__self__) == target
    )


def applied(target: Any, compiled: Callable[[Any], Any], owner: object) -> Any:
    """``cls.apply`` with a compiled ``forward``; itself where that is nothing that can be compiled.

    ``compiled`` gives what to call instead of a function, on behalf of ``owner``.
    """
    cls: Any = target.__self__
    forward = inspect.getattr_static(cls, "forward")
    if not isinstance(forward, staticmethod) or type(forward.__func__) is not types.FunctionType:
        return target
    function = compiled(forward.__func__)
    if function is forward.__func__:
        return target
    twins = cls._backward_cls.__dict__.get(TWINS)
    if twins is None:
        twins = weakref.WeakKeyDictionary()
        setattr(cls._backward_cls, TWINS, twins)
    twin = twins.get(owner)
    if twin is None or twin.__dict__["forward"].__func__ is not function:
        names = {"forward": staticmethod(function), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        twin = twins[owner] = type(cls)(cls.__name__, (cls,), names)
    return torch_compat.bound_apply(twin)
