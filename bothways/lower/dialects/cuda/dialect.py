"""The CUDA dialect: kernels are compiled by NVRTC and launched through the driver, on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bothways.building.cuda_build import CudaSource, build_cuda, load_cuda, needed_helpers, source_key, tools_of
from bothways.building.cuda_driver import NoDriver, architecture, driver_version
from bothways.building.nvrtc import NoNVRTC, nvrtc
from bothways.cache.disk import Cache
from bothways.calls.launching import launchers
from bothways.lower.dialects.cuda.batching import gathered
from bothways.lower.dialects.cuda.kernels import spell
from bothways.lower.dialects.cuda.prelude import FEW_WORDS, HEAD, HELPERS, MANY_WORDS
from bothways.lower.dialects.cuda.rows_and_columns import all_arranged
from bothways.lower.dialects.cuda.timed import timed_launches
from bothways.lower.host.dialect import Timed
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Kernel

Functions = dict[str, Callable[..., Any]]
# Kernels of more than 4 KB of parameters: what they run on, and a driver whose CUDA graphs can be trusted with them.
# Those of CUDA 12 take them since 12.1, but some end the process where a node of a graph has such parameters.
LARGE_SINCE, LARGE_DRIVER = 70, 13000


@dataclass(frozen=True)
class SpelledInCuda:
    """The CUDA C++ of a program."""

    source: CudaSource
    sizes: dict[str, tuple[str, ...]]
    index: int
    uses_threads = False

    @property
    def text(self) -> str:
        return str(self.source)

    @property
    def called(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(one.kernel for one in launches) for name, launches in self.source.routines.items()}

    def functions(self, kinds: Mapping[str, str]) -> Functions:
        return launchers(build_cuda(self.source, self.index), kinds) if kinds else {}

    def key(self, cache: Cache) -> str:
        return source_key(self.source, tools_of(self.index)) if self.source.routines else ""


@functools.cache
def _problem(index: int) -> str:
    try:
        tools_of(index)
        arch, compiler = architecture(index), nvrtc()
    except (NoNVRTC, NoDriver) as error:
        return str(error)
    return "" if compiler.knows(arch) else f"NVRTC {compiler.version} does not know {arch}"


@functools.cache
def words_of_tables(index: int) -> int:
    """How many words of eight bytes a kernel may be given by value on a device."""
    release = tuple(map(int, nvrtc().version.split(".")))
    large = int(architecture(index).removeprefix("sm_")) >= LARGE_SINCE and release >= (12, 1)
    return MANY_WORDS if large and driver_version() >= LARGE_DRIVER else FEW_WORDS


@dataclass(frozen=True)
class Cuda:
    """Spells kernels in CUDA C++, for one device."""

    index: int
    name = "CUDA"
    suffix = ".cu"
    device = "cuda"

    def why_not(self) -> str:
        """Why there are no kernels here; nothing if there are."""
        return _problem(self.index)

    def tools(self, cache: Cache) -> str:
        return f"{tools_of(self.index)} cuda:{self.index}"

    def arranged(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        return gathered(all_arranged(kernels), words_of_tables(self.index))

    def spell(self, routines: Sequence[Routine], names: SizeNames | None) -> SpelledInCuda:
        return SpelledInCuda(*spell(routines, names), self.index)

    def recall(self, key: str, kinds: Mapping[str, str], cache: Cache) -> Functions | None:
        loaded = load_cuda(key, self.index, cache)
        return None if loaded is None else launchers(loaded, kinds)

    def timed(self, text: str, kinds: Mapping[str, str], functions: Mapping[str, Any]) -> dict[str, Timed]:
        return timed_launches(kinds, functions)

    def whole(self, text: str) -> str:
        return f"{HEAD}{needed_helpers(text, HELPERS)}\n{text}"
