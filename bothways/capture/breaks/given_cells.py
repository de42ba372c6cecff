"""Whether a continuation may be given the cells of the functions around it, as variables that are its own.

Where one of them is unbound, Python says that a free variable is, by another error than of a local one. A continuation
that has its closure for itself says the same.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from bothways.capture.bytecode.instructions import decode, free_names
from bothways.capture.values.code.cells import CellValue


def may_be_given(code: types.CodeType, closure: Sequence[Any]) -> bool:
    """Whether no variable of the closure is unbound where the code reads it, as far as can be known."""
    deleted, read = _uses(code)
    return not any(
        name in deleted or (name in read and isinstance(cell, CellValue) and cell.content is None)
        for name, cell in zip(free_names(code), closure, strict=False)
    )


@lru_cache(maxsize=1024)
def _uses(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The variables that code deletes, and those that it reads and never stores; others' are cells, too."""
    uses: dict[str, set[str]] = {"DELETE_DEREF": set(), "LOAD_DEREF": set(), "STORE_DEREF": set()}
    for instruction in decode(code).instructions:
        if instruction.name in uses:
            uses[instruction.name].add(instruction.argval)
    return uses["DELETE_DEREF"], uses["LOAD_DEREF"] - uses["STORE_DEREF"]
