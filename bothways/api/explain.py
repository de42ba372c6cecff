"""``bothways.explain(fn)``: what has become of a function so far; called with arguments, it runs one call first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bothways.api.compile import check_target, compile
from bothways.api.history import compiled_state
from bothways.driver.compiled import CompiledFunction
from bothways.report import Explanation
from bothways.report.explaining import explained_state


def explain(fn: Callable[..., Any]) -> Explanation:
    """Explain what has happened to a compiled function so far: ``print(explain(fn))``. This runs nothing.

    ``explain(fn)(*args)`` first calls the function once, side effects included (for a training step, one more step).
    A plain function is compiled for that call. The ``Explanation`` that is returned prints as ten lines; read all of it
    as ``.details``, a part as ``.breaks``, ``.guards``, ``.graph``, ``.code``, ``.kernels`` or ``.memory``, and write
    the report with ``.html("report.html")``.

    - ``fn``: a function, method or module, compiled or not.

    >>> explanation = bothways.explain(lambda x: (x.sin() + float(x.sum())).cos())(torch.ones(3))
    >>> explanation.graph_count
    2
    >>> [found.code for found in explanation.breaks]
    ['tensor_value']
    """
    state = compiled_state(fn)
    if state is None:
        check_target(fn)
    return _explained(fn, fn, state)


def _run(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    target = fn if compiled_state(fn) is not None else compile(fn)
    result = target(*args, **kwargs)
    return _explained(fn, target, compiled_state(target), has_run=True, result=result)


def _explained(fn: Callable[..., Any], target: Any, state: CompiledFunction | None, **call: Any) -> Explanation:
    run = functools.partial(_run, fn)
    if state is None:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        return Explanation(name, is_compiled=False, run=run, **call)
    return explained_state(state, run=run, **call)
