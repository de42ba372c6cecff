"""A part of a captured graph that was cut: compiled at its first call, when the real inputs are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways.grad.tracing.sizes import Sizes
from bothways.record import generated
from bothways.runtime.listening import listening

CompilePart = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

# So many times a part is compiled for sizes that what was assumed does not hold for; then it runs as captured.
MOST_PROGRAMS = 8


class Part:
    """One section as a function of sizes and tensors; without ``compile_part`` it runs as captured.

    The program is in use when a part is compiled: what that assumes about sizes is a condition of what comes out, and
    where it does not hold, another one is made.
    """

    def __init__(
        self, module: torch.fx.GraphModule, name: str, compile_part: CompilePart | None, sizes: Sizes
    ) -> None:
        self.module = module
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__
        self._compile = compile_part
        self._sizes = sizes
        self._generated = generated.current()
        self._run: Callable[..., Any] | None = module.forward if compile_part is None else None  # for all sizes
        self._programs: list[tuple[Callable[..., bool], Callable[..., Any]]] = []  # for some

    def __call__(self, *values: Any) -> Any:
        if self._run is not None:
            return self._run(*values)
        numbers = values[: len(self._sizes.symbols)]
        run = next((run for holds, run in self._programs if holds(*numbers)), None)
        return (run or self._compiled(values, numbers))(*values)

    def _compiled(self, values: tuple[Any, ...], numbers: tuple[Any, ...]) -> Callable[..., Any]:
        assert self._compile is not None
        if len(self._programs) >= MOST_PROGRAMS:
            generated.tell(self._generated, self.__name__, "its sizes keep changing what it does")
            forward: Callable[..., Any] = self.module.forward
            return forward
        with self._sizes.later(numbers) as conditions, generated.kept_in(self._generated), listening():
            run = self._compile(self.module, list(values))
        if conditions:
            self._programs.insert(0, (self._sizes.condition(conditions), run))
        else:
            self._run = run
        return run

    def __repr__(self) -> str:
        return self.__name__
