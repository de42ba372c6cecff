"""What the autograd engine wants of a node whose backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch._C as _C
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER

_will_run: Callable[[Any], bool] = _C._will_engine_execute_node


class WantedGradients:
    """Which gradients the engine wants of a node whose backward runs, asked run after run.

    ``autograd.grad(y, x)`` comes to everything behind ``y``, and asks for what leads to ``x``. About a leaf that it is
    called with the engine answers with an error, which takes longer than all the rest. So where the other answers are
    those of runs in which the leaf was wanted, it is taken to be wanted again: the engine lets a gradient fall that it
    does not want. Not where it ever was otherwise, or where answers have to be ``exact``.
    """

    def __init__(self) -> None:
        self.number = next(AUTOGRAD_FUNCTION_COUNTER)  # neither another graph's nor a custom function's, ever
        self._leaves: frozenset[int] = frozenset()  # the places where there was an error
        self._with_leaves: dict[tuple[bool, ...], bool] = {}  # answers, with True in those places: was that always so

    def of(self, node: Any, exact: bool = False) -> tuple[bool, ...]:
        following, leaves = node.next_functions, self._leaves
        if leaves and not exact:
            wanted = self._answers(following, leaves)
            if self._with_leaves.get(wanted) and self._leaves is leaves:
                return wanted
        wanted = self._answers(following, frozenset())
        if self._leaves:
            with_leaves = tuple([want or place in self._leaves for place, want in enumerate(wanted)])
            self._with_leaves[with_leaves] = with_leaves == wanted and self._with_leaves.get(with_leaves, True)
        return wanted

    def _answers(self, following: Sequence[Any], unasked: frozenset[int]) -> tuple[bool, ...]:
        if not self._leaves:
            try:
                return tuple([function is not None and _will_run(function) for function, _ in following])
            except RuntimeError:  # which of them it was is found out one by one
                pass
        wanted = []
        for place, (function, _) in enumerate(following):
            try:
                wanted.append(function is not None and (place in unasked or _will_run(function)))
            except RuntimeError:  # its gradient is taken, and not accumulated
                wanted.append(True)
                self._leaves |= {place}
        return tuple(wanted)
