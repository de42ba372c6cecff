"""What each bytecode instruction does, one table per CPython version.

``common`` holds the instructions that mean the same in every version; each version's file adds its own and
states its differences. The interpreter asks ``handler_table`` once per code object.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from functools import cache
from typing import TYPE_CHECKING

from bothways.capture.bytecode.opcodes.common import unknown_opcode

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler

VERSIONS = {(3, 11): "py311", (3, 12): "py312", (3, 13): "py313", (3, 14): "py314"}


@cache
def handler_table() -> tuple[dict[str, Handler], Handler]:
    """The running version's table, and the handler for instructions that are not in it."""
    problem = problem_of_python()
    if problem is not None:
        raise RuntimeError(problem)
    module = importlib.import_module(f"bothways.capture.bytecode.opcodes.{VERSIONS[sys.version_info[:2]]}")
    return module.TABLE, unknown_opcode


def problem_of_python() -> str | None:
    """Why functions cannot be compiled in this Python, and which one to use; None where they can."""
    first, last = (".".join(map(str, version)) for version in (min(VERSIONS), max(VERSIONS)))
    wanted = f"use CPython {first} to {last}"
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in VERSIONS:
        return f"{wanted}: the bytecode of others is not known"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # where objects look different in memory, besides
        return f"{wanted} with its global lock: the free-threaded build is not supported"
    return None
