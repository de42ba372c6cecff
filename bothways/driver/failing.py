"""Which guard of a program does not hold for the values of a call, and how people read it."""

from __future__ import annotations

from typing import Any

from bothways import torch_compat
from bothways.runtime.dispatcher import Dispatcher
from bothways.runtime.program import Check, Program


def failing_check(program: Program, dispatcher: Dispatcher, values: tuple[Any, ...]) -> Check | None:
    """The first guard of a program that does not hold for these values, evaluated one by one."""
    variables = {**dispatcher.namespace, **program.namespace, **dispatcher.renamed(values)}

    def holds(check: Check) -> bool:
        try:
            return bool(eval(check.code, variables))
        except Exception:
            return False

    if program.unseen_by_modes is not None and not holds(program.unseen_by_modes[0]):
        return program.unseen_by_modes[0]
    with torch_compat.without_function_modes():
        return next((check for check in program.checks if not holds(check)), None)


def describe_check(check: Check) -> str:
    where = f" (assumed at {check.where})" if check.where is not None else ""
    return f"{check.text}{where}" if check.changed is None else f"{check.changed()} was replaced"
