"""The C dialect: kernels are compiled by the system's compiler, and entered through the library of calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bothways.building.build import CSource, build, library_key, load, working_tools
from bothways.building.declarations import prelude
from bothways.building.loading import Library
from bothways.building.toolchain import toolchain
from bothways.cache.disk import Cache
from bothways.calls.call_library import entry, making
from bothways.lower.dialects.c.kernels import spell
from bothways.lower.dialects.c.prelude import HELPERS
from bothways.lower.dialects.c.products import bound, can_multiply
from bothways.lower.dialects.c.timed import timed_routines
from bothways.lower.host.dialect import Timed
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Kernel

Functions = dict[str, Callable[..., Any]]
_CALL = re.compile(r"^    (kernel_\w+)\(", re.MULTILINE)  # of a kernel, in the text of a routine


@dataclass(frozen=True)
class SpelledInC:
    """The C of a program."""

    source: CSource
    sizes: dict[str, tuple[str, ...]]
    uses_threads: bool

    @property
    def text(self) -> str:
        return str(self.source)

    @property
    def called(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(_CALL.findall(entry)) for name, entry in zip(self.sizes, self.source.entries, strict=True)}

    def functions(self, kinds: Mapping[str, str]) -> Functions:
        if not kinds:
            return {}
        library = build(self.source)
        bound(library)
        return _entered(library, kinds)

    def key(self, cache: Cache) -> str:
        return library_key(self.source, working_tools(cache)) if self.source.entries else ""


class C:
    """Spells kernels in C."""

    name, suffix, device = "C", ".c", "cpu"
    adds_at_places = True
    frame = 1 << 14  # a thread of the user's may have a stack of 128 KB

    def tools(self, cache: Cache) -> str:
        return f"{working_tools(cache).fingerprint}{' and products' * self.multiplies}"

    @property
    def multiplies(self) -> bool:
        return can_multiply()

    def arranged(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        return list(kernels)

    def spell(self, routines: Sequence[Routine], names: SizeNames | None) -> SpelledInC:
        return SpelledInC(*spell(routines, names), any(routine.is_parallel for routine in routines))

    def recall(self, key: str, kinds: Mapping[str, str], cache: Cache) -> Functions | None:
        library = load(key, cache)
        return None if library is None or not bound(library) else _entered(library, kinds)

    def making(self, rows: Sequence[str]) -> Callable[..., Any]:
        return making(rows)

    def timed(self, text: str, kinds: Mapping[str, str], functions: Mapping[str, Any]) -> dict[str, Timed]:
        return timed_routines(text, kinds) if kinds else {}

    def whole(self, text: str) -> str:
        return f"{prelude(text, toolchain().vectorized, HELPERS)}\n{text}"


def _entered(library: Library, kinds: Mapping[str, str]) -> Functions:
    return {name: entry(library.address(name), letters, library) for name, letters in kinds.items()}
