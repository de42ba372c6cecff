"""What each bytecode instruction does, one table per CPython version.

``common`` holds the instructions that mean the same in every version; each version's file adds its own and
states its differences. The interpreter asks ``handler_table`` once per code object.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING

from bothways.capture.bytecode.opcodes.common import unknown_opcode

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Handler

VERSIONS = {(3, 11): "py311", (3, 12): "py312", (3, 13): "py313", (3, 14): "py314"}


@cache
def handler_table() -> tuple[dict[str, Handler], Handler]:
    """The running version's table, and the handler for instructions that are not in it."""
    version = sys.version_info[:2]
    if version not in VERSIONS:
        supported = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise RuntimeError(f"bothways captures bytecode of CPython {supported}; this is {version[0]}.{version[1]}")
    module = importlib.import_module(f"bothways.capture.bytecode.opcodes.{VERSIONS[version]}")
    return module.TABLE, unknown_opcode
