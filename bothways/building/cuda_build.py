"""Builds the CUDA C++ of a graph into machine code and loads it on a device: from the cache, or with NVRTC.

A program's kernels are compiled in a few pieces, side by side. What is kept is the code, and which kernels each routine
launches with what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from bothways.building.build import cpus
from bothways.building.cuda_driver import Module, NoDriver, architecture, driver_version
from bothways.building.nvrtc import FLAGS, NoNVRTC, nvrtc
from bothways.cache.disk import Cache, decoded, encoded, key_of, open_cache, warn_unused
from bothways.cache.portable import ACCEPTS
from bothways.record.generated import stage

FORMAT = "1"  # changes when what an entry of the cache holds changes
SOURCE, LAUNCHES = "kernels.cu", "launches.json"
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_LAST_WORD = re.compile(r"\w+(?=,|$)")
MOST_UNITS = 16  # pieces of a program: each begins with the same helpers, and a first step waits for the longest

# Where an argument of a kernel is found among what a routine is given.
# As it is; so many bytes behind a pointer; as many as another number says; nowhere, but this number itself.
AS_GIVEN, BEHIND, BEHIND_NUMBER, LITERAL = 0, 1, 2, 3
Argument = tuple[int, int, int]  # which one, which of these four, the bytes, the other's place, or the number


@dataclass(frozen=True)
class CudaKernel:
    """A kernel, whose blocks have so many threads; as many of them fit a processor as ``together`` says, or more.

    ``comment`` says where it comes from. ``aligned`` is a condition under which its body may read and write vectors:
    that is then compiled twice, since tests at every vector are as many instructions again.
    """

    name: str
    comment: str
    parameters: str
    body: str
    threads: int
    together: int
    aligned: str = ""

    def __str__(self) -> str:
        head = f"KERNEL({self.threads}, {self.together}) {self.name}({self.parameters})"
        if not self.aligned:
            return f"{self.comment}{head} {{\n{self.body}\n}}\n"
        body = f"INLINED void {self.name}_with({self.parameters}, const int aligned) {{\n{self.body}\n}}\n"
        names = ", ".join(_LAST_WORD.findall(self.parameters))
        calls = f"    if ({self.aligned}) {self.name}_with({names}, 1);\n    else {self.name}_with({names}, 0);"
        return f"{self.comment}{body}{head} {{\n{calls}\n}}\n"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    blocks: int
    threads: int
    shared: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CudaSource:
    """The CUDA C++ of a graph: kernels, and what each routine launches."""

    kernels: tuple[CudaKernel, ...]
    routines: dict[str, tuple[Launch, ...]]
    helpers: dict[str, str] = field(repr=False, compare=False)
    head: str = field(repr=False, compare=False)  # what stands above everything

    def __str__(self) -> str:
        return "\n".join(map(str, self.kernels))

    def whole(self, part: str) -> str:
        """A file that compiles: a part of the text, or all of it, with what it needs above it."""
        return f"{self.head}{needed_helpers(part, self.helpers)}\n{part}"

    def units(self, limit: int) -> list[list[CudaKernel]]:
        """Up to so many groups of kernels of about one size."""
        count = max(1, min(limit, len(self.kernels)))
        parts: list[list[CudaKernel]] = [[] for _ in range(count)]
        sizes = [0] * count
        for kernel in sorted(self.kernels, key=lambda kernel: -len(kernel.body)):
            smallest = sizes.index(min(sizes))
            parts[smallest].append(kernel)
            sizes[smallest] += len(kernel.body) + 400
        return parts

    @property
    def plan(self) -> str:
        """What routines launch, as text."""
        routines = {
            name: [
                [one.kernel, one.blocks, one.threads, one.shared, list(map(list, one.arguments))] for one in launches
            ]
            for name, launches in self.routines.items()
        }
        return json.dumps(routines)


def needed_helpers(text: str, helpers: dict[str, str]) -> str:
    """Those of some helpers that a text uses, by itself or through others; a helper may use those above it."""
    used, texts = set(_WORD.findall(text)), []
    for name, helper in reversed(helpers.items()):
        if name in used:
            texts.append(helper)
            used |= set(_WORD.findall(helper))
    return "".join(reversed(texts))


def planned(text: str) -> dict[str, tuple[Launch, ...]]:
    """What ``plan`` wrote."""
    routines: dict[str, Any] = json.loads(text)
    return {
        name: tuple(
            Launch(kernel, blocks, threads, shared, tuple((one, kind, other) for one, kind, other in arguments))
            for kernel, blocks, threads, shared, arguments in launches
        )
        for name, launches in routines.items()
    }


@dataclass(frozen=True)
class Loaded:
    """A program's kernels on a device: what each routine launches, and the handles of kernels by name."""

    device: int
    routines: Mapping[str, Sequence[Launch]]
    functions: Mapping[str, int]


_modules: dict[tuple[str, int], list[Module]] = {}  # by key and device. They stay: graphs of CUDA's may replay them


def tools_of(device: int) -> str:
    """All that decides what becomes of a text on a device."""
    return f"{FORMAT} {architecture(device)} driver {driver_version()} NVRTC {nvrtc().version} {FLAGS}"


def source_key(source: CudaSource, tools: str) -> str:
    # Comments name lines of the user's, which move when something else in the file is edited.
    return key_of("cuda", tools, _COMMENT.sub("", source.whole(str(source))), source.plan)


def _is_built_for_here(key: str, files: Mapping[str, bytes]) -> bool:
    """Whether machine code of a shipment is what would have been built here, for one of the GPUs there are."""
    try:
        text, plan = _COMMENT.sub("", decoded(files[SOURCE])), decoded(files[LAUNCHES])
        return any(key == key_of("cuda", tools_of(index), text, plan) for index in range(torch.cuda.device_count()))
    except (KeyError, UnicodeDecodeError, NoDriver, NoNVRTC):
        return False


ACCEPTS[".cubin"] = _is_built_for_here


@stage("build")
def build_cuda(source: CudaSource, device: int) -> Loaded:
    """The kernels, loaded on a device."""
    key = source_key(source, tools_of(device))
    modules = _modules.get((key, device))
    if modules is None:
        cache = open_cache()
        files = None if cache is None else cache.read(key)
        codes = _codes_in(files) if files is not None else compiled(source, architecture(device))
        if cache is not None and files is None:
            _keep(cache, key, source, codes)
        modules = _modules.setdefault((key, device), [Module(code, device) for code in codes])
    return _resolved(device, source.routines, modules)


def load_cuda(key: str, device: int, cache: Cache) -> Loaded | None:
    """Kernels that were built before, by their key; None when they are there no more."""
    files = cache.read(key)
    if files is None or LAUNCHES not in files:
        return None
    modules = _modules.get((key, device))
    if modules is None:
        modules = _modules.setdefault((key, device), [Module(code, device) for code in _codes_in(files)])
    return _resolved(device, planned(files[LAUNCHES].decode()), modules)


def compiled(source: CudaSource, arch: str) -> list[bytes]:
    """Machine code of all kernels, compiled side by side."""
    compiler = nvrtc()
    texts = [source.whole("\n".join(map(str, unit))) for unit in source.units(min(cpus(), MOST_UNITS))]
    if len(texts) == 1:
        return [compiler.compile(texts[0], arch)]
    with ThreadPoolExecutor(len(texts), "bothways-nvrtc") as pool:
        return list(pool.map(lambda text: compiler.compile(text, arch), texts))


def _codes_in(files: Mapping[str, bytes]) -> list[bytes]:
    return [code for name, code in sorted(files.items()) if name.endswith(".cubin")]


def _keep(cache: Cache, key: str, source: CudaSource, codes: Sequence[bytes]) -> None:
    try:
        with cache.workplace() as folder:
            for number, code in enumerate(codes):
                (folder / f"{number:03}.cubin").write_bytes(code)
            (folder / SOURCE).write_bytes(encoded(source.whole(str(source))))
            (folder / LAUNCHES).write_bytes(encoded(source.plan))
            cache.add(key, folder)
    except OSError as error:
        warn_unused(error)


def _resolved(device: int, routines: Mapping[str, Sequence[Launch]], modules: Sequence[Module]) -> Loaded:
    """Find each kernel in the module it is in."""
    shared: dict[str, int] = {}
    for launches in routines.values():
        for one in launches:
            shared[one.kernel] = max(shared.get(one.kernel, 0), one.shared)
    functions: dict[str, int] = {}
    for name, size in shared.items():
        function = next((handle for module in modules if (handle := module.find(name, size))), 0)
        if not function:
            raise RuntimeError(f"the machine code has no kernel {name}")
        functions[name] = function
    return Loaded(device, routines, functions)
