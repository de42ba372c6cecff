"""The first call of a program, whose graph may fail though its shapes are right: ATen refuses a dimension out of range,
or there is no memory left.

Such a graph has left everything as it was, so plain Python can run the call: it raises at the user's line, in the
user's handlers, after the same effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways.errors import BothwaysError, Break, KernelWarning
from bothways.runtime.program import Program


class FirstCall:
    """A graph that is called once, and what it raised, unless that is about bothways itself or a backend."""

    def __init__(self, graph: Callable[..., Any]) -> None:
        self._graph = graph
        self.failure: Exception | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._graph(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, (BothwaysError, KernelWarning)):
                self.failure = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


def run_first(
    program: Program,
    run: Callable[[dict[str, Any]], Any],
    plain: Callable[[], Any],
    end: Callable[[Program, Break], None],
    believes: bool,
) -> Any:
    """What a program gives when it first runs; ``run`` takes what is to stand in the place of some of its names.

    Where its graph fails, that is the ``end`` of the program, if plain Python raises as well. If it does not, the
    user's code has caught the error, or the graph is at fault; ``believes`` says that it is the former.
    """
    if program.anew is None:
        return run({})
    first = FirstCall(program.namespace[program.anew])
    try:
        return run({program.anew: first})
    except Exception as error:
        if error is not first.failure:
            raise
        failure = error
    refused = Break("op_failed", f"{type(failure).__name__}: {failure}")
    try:
        try:
            result = plain()
        except BaseException:
            end(program, refused)
            raise
        if isinstance(failure, torch.OutOfMemoryError):
            return result
        if not believes:
            raise failure
        end(program, refused)
        return result
    finally:
        del run, plain, first, failure  # errors keep the frames that they have passed
