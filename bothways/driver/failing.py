"""Which guard of a program fails for the values of a call, and how a report words it.

Guards are evaluated one by one, as Python; a table in C is only asked whether all of them hold.
"""

from __future__ import annotations

from typing import Any

from bothways import torch_compat
from bothways.runtime.dispatcher import Dispatcher
from bothways.runtime.program import Check, Program


def failing_check(program: Program, dispatcher: Dispatcher, values: tuple[Any, ...]) -> Check | None:
    """The first guard of a program that does not hold for these values, evaluated one by one."""
    variables = _variables(program, dispatcher, values)
    if program.unseen_by_modes is not None and not _holds(program.unseen_by_modes[0], variables):
        return program.unseen_by_modes[0]
    with torch_compat.without_function_modes():
        return next((check for check in program.checks if not _holds(check, variables)), None)


def fits(program: Program, dispatcher: Dispatcher, values: tuple[Any, ...]) -> bool:
    """Whether a program takes these values: asked as a hit asks, by the table as far as there is one."""
    table = program.table
    if table is None or program.unseen_by_modes is not None:
        return failing_check(program, dispatcher, values) is None
    hit = program.namespace[table.key](*values)
    if not hit:
        return False
    variables = _variables(program, dispatcher, values)
    variables.update(zip(table.names, hit if table.names else (), strict=True))
    return all(_holds(check, variables) for check in program.checks if not check.in_table)


def _variables(program: Program, dispatcher: Dispatcher, values: tuple[Any, ...]) -> dict[str, Any]:
    return {**dispatcher.namespace, **program.namespace, **dispatcher.renamed(values)}


def _holds(check: Check, variables: dict[str, Any]) -> bool:
    try:
        return bool(eval(check.code, variables))
    except Exception:
        return False


def describe_check(check: Check) -> str:
    where = f" (assumed at {check.where})" if check.where is not None else ""
    return f"{check.text}{where}" if check.changed is None else f"{check.changed()} was replaced"
