"""The reference dialect: kernels are Python functions, run as they are. Nothing of it is kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bothways.cache.disk import Cache
from bothways.lower.dialects.reference.kernels import spell
from bothways.lower.dialects.reference.numbers import STORED, Cells, whole
from bothways.lower.dialects.reference.operators import OF_SINGLE, OPERATIONS, REDUCTIONS
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Kernel

# What kernels call by name.
NAMES: dict[str, Any] = {
    **OPERATIONS,
    **{f"{name}_single": function for name, function in OF_SINGLE.items()},
    **{f"take_{name}": function for name, function in REDUCTIONS.items()},
    **STORED,
    "whole": whole,
    "at_cells": Cells,  # no value of a graph has a name like that
}


@dataclass(frozen=True)
class SpelledInPython:
    """The Python of a program's kernels."""

    text: str
    sizes: dict[str, tuple[str, ...]]
    uses_threads = False

    def functions(self, kinds: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
        namespace = dict(NAMES)
        exec(compile(self.text, "<bothways reference kernels>", "exec"), namespace)
        return {name: namespace[name] for name in kinds}

    def key(self, cache: Cache) -> str:
        return ""


class Reference:
    """Spells kernels as plain Python loops."""

    name, suffix, device = "reference", ".kernels.py", "cpu"

    def tools(self, cache: Cache) -> str | None:
        return None

    def arranged(self, kernel: Kernel) -> list[Kernel]:
        return [kernel]

    def spell(self, routines: Sequence[Routine], names: SizeNames | None) -> SpelledInPython:
        return SpelledInPython(*spell(routines, names))

    def recall(self, key: str, kinds: Mapping[str, str], cache: Cache) -> dict[str, Callable[..., Any]] | None:
        return None

    def whole(self, text: str) -> str:
        return f"from {__name__} import NAMES\n\nglobals().update(NAMES)\n\n\n{text}"
