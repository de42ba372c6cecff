"""Functions that are called at a break: each is compiled as well, by itself.

A callable comes in, and what to call instead goes out: its compiled function, or the callable itself. Nothing here
keeps a user's function alive.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bothways import torch_compat
from bothways.config import config
from bothways.driver import limits
from bothways.driver.functions_applied import applied, is_apply
from bothways.record.standing import Standing, left_out
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import mark_of

# So many functions that were made from one code, and no more of them are compiled: they are made for each call.
MOST_OF_A_KIND = 4

# Methods of a module that, without hooks, do nothing but to call ``forward``.
_MODULE_CALLS = (torch.nn.Module.__call__, torch_compat.call_module)
# Where one of these breaks there is nothing to be gained in the rest: it is one kernel, and what makes sure of its
# arguments or puts them in order.
LEFT_ALONE: frozenset[Any] = frozenset({
    torch.nn.RNN.forward, torch.nn.LSTM.forward, torch.nn.GRU.forward, torch.nn.RNNBase.flatten_parameters,
    torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence, torch.nn.utils.rnn.pack_sequence,
    torch.nn.utils.rnn.pad_sequence, torch.nn.utils.rnn.unpad_sequence, torch.nn.utils.rnn.unpack_sequence,
    torch_compat.CALL_CUSTOM_OPERATION,
})  # fmt: skip


class Callees:
    """The functions that one compiled function calls at its breaks.

    Objects with a ``__call__`` of one class share a function, and would use up each other's programs: there is one
    compiled function for each class. Nothing of it is kept longer than the function and the class are.
    """

    def __init__(
        self,
        compile: weakref.WeakMethod[Callable[[types.FunctionType], types.FunctionType]],
        instead: Mapping[Any, types.FunctionType],
    ) -> None:
        """``instead`` is what the backend would have called, by functions that are left alone."""
        self._compile, self._instead = compile, instead
        self._known: weakref.WeakKeyDictionary[
            types.FunctionType, weakref.WeakKeyDictionary[type, types.FunctionType]
        ] = weakref.WeakKeyDictionary()
        self._kinds: Counter[types.CodeType] = Counter()  # how many functions of a code are compiled
        self._renewed: Counter[types.CodeType] = Counter()  # how often one was compiled once more, for other defaults
        self.left_out: dict[types.CodeType, Standing] = {}

    def compiled(self, target: Any) -> Any:
        """What to call instead of ``target``; it itself when it is nothing that can be compiled."""
        if is_apply(target):
            return applied(target, self.compiled, self)
        function, owner = _parts(target)
        if function is None or is_compiled(function) or mark_of(function) is not None:
            return target
        if function in LEFT_ALONE:
            return _bound(self._instead[function], owner) if function in self._instead else target
        known = self._compiled(function, type(owner))
        if known is None:
            return target
        return _bound(known, owner)

    def _compiled(self, function: types.FunctionType, kind: type) -> types.FunctionType | None:
        by_kind = self._known.get(function)
        known = None if by_kind is None else by_kind.get(kind)
        if known is not None and _is_same(known.__wrapped__, function):  # type: ignore[attr-defined]
            return known
        compile = self._compile()
        if known is not None and not self._may_renew(function):
            return None
        if by_kind is None:
            if self._kinds[function.__code__] >= MOST_OF_A_KIND:
                self.left_out.setdefault(function.__code__, left_out(function, MOST_OF_A_KIND))
                return None
            self._kinds[function.__code__] += 1
            by_kind = self._known.setdefault(function, weakref.WeakKeyDictionary())
        if compile is None:
            return None
        known = by_kind[kind] = compile(_twin(function))
        return known

    def _may_renew(self, function: types.FunctionType) -> bool:
        """Whether a function that was given other defaults is compiled once more."""
        self._renewed[function.__code__] += 1
        count = self._renewed[function.__code__]
        if count == config.recompile_limit + 1:
            limits.say(
                f"{function.__qualname__} runs as plain Python from now on: it was given other defaults more than "
                "config.recompile_limit times. Pass what changes."
            )
        return count <= config.recompile_limit


def _bound(function: types.FunctionType, owner: Any) -> Any:
    return function if owner is None else types.MethodType(function, owner)


def _twin(function: types.FunctionType) -> types.FunctionType:
    """A function that does the same, so that the function itself is not kept alive."""
    twin = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__, twin.__module__, twin.__doc__ = function.__qualname__, function.__module__, function.__doc__
    twin.__dict__.update(function.__dict__)
    return twin


def _is_same(twin: types.FunctionType, function: types.FunctionType) -> bool:
    """Whether all that calls depend on is the same, besides what the closure and the globals hold."""
    return (
        twin.__code__ is function.__code__
        and twin.__defaults__ is function.__defaults__
        and twin.__kwdefaults__ is function.__kwdefaults__
        and twin.__closure__ is function.__closure__
    )


def _parts(target: Any) -> tuple[types.FunctionType | None, Any]:
    """The function behind a callable, and the object it is bound to."""
    owner: Any = target.__self__ if type(target) is types.MethodType and target.__func__ in _MODULE_CALLS else target
    if issubclass(type(owner), torch.nn.Module) and torch_compat.calls_forward(owner):
        forward = type(owner).forward
        return (forward, owner) if type(forward) is types.FunctionType else (None, None)
    if type(target) is types.FunctionType:  # a mock says that it is one
        return target, None
    if type(target) is types.MethodType:
        return (target.__func__, target.__self__) if type(target.__func__) is types.FunctionType else (None, None)
    call = type(target).__call__ if callable(target) else None
    return (call, target) if type(call) is types.FunctionType else (None, None)
