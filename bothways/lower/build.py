"""Builds the C of a graph into a shared library and loads it: from the cache, or with the system's compiler."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bothways.errors import BuildFailed, warn_once
from bothways.lower.cache import Cache, key_of, open_cache, warn_unused
from bothways.lower.prelude import prelude
from bothways.lower.toolchain import BEST, Toolchain, probe, toolchain

FORMAT = "1"  # changes when what an entry of the cache holds changes
SOURCE, LIBRARY, OPTIONS = "kernels.c", "kernels.so", "options"
UNIT = 12000  # characters of C that are worth a compiler of their own: some 80 ms of its time


@dataclass(frozen=True)
class Function:
    """A kernel in C. ``comment`` says where it comes from."""

    comment: str
    signature: str
    body: str

    def __str__(self) -> str:
        return f"{self.comment}static {self.definition}"

    @property
    def definition(self) -> str:
        return f"{self.signature} {{\n{self.body}\n}}\n"


@dataclass(frozen=True)
class Source:
    """The C of a graph: kernels, and the functions Python calls, which call kernels."""

    kernels: tuple[Function, ...]
    entries: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.kernels, *self.entries]))

    def units(self, limit: int) -> list[str]:
        """What the compiler is given: one file or, when there is much of it, up to ``limit`` of about one size."""
        count = min(limit, sum(len(kernel.body) for kernel in self.kernels) // UNIT)
        if count < 2:
            return [str(self)]
        hidden = '__attribute__((visibility("hidden"))) '
        parts: list[list[str]] = [[] for _ in range(count)]
        sizes = [0] * count
        for kernel in sorted(self.kernels, key=lambda kernel: -len(kernel.body)):
            smallest = sizes.index(min(sizes))
            parts[smallest].append(hidden + kernel.definition)
            sizes[smallest] += len(kernel.body)
        smallest = sizes.index(min(sizes))
        parts[smallest][:0] = [f"{hidden}{kernel.signature};\n" for kernel in self.kernels]
        parts[smallest] += self.entries
        return ["\n".join(part) for part in parts]


_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)


class Failure(Exception):
    """What the compiler or the loader said."""


_loaded: dict[str, ctypes.CDLL] = {}  # by key: a library that is loaded already is used again
_options: dict[str, tuple[int, ...]] = {}  # by the identity of a compiler: which of its options work


def build(source: Source) -> ctypes.CDLL:
    """The loaded library of kernels."""
    library = library_of(source)
    tools = working_tools(open_cache())
    if not tools.threads:
        warn_once(f"kernels use one thread: {tools.command[0]} does not work with PyTorch's OpenMP runtime")
    return library


def library_of(source: Source) -> ctypes.CDLL:
    """The loaded library of any C source."""
    cache = open_cache()
    tools = working_tools(cache)
    try:
        return _library(source, tools, cache)
    except Failure as failure:
        working = probe(_problem)
        if toolchain(working) == tools:
            raise BuildFailed(str(failure)) from None
    _remember(cache, toolchain(), working)
    return library_of(source)


def working_tools(cache: Cache | None) -> Toolchain:
    """The compiler with the best options, as far as is known, that work."""
    best = toolchain()
    if best.identity not in _options:
        _options[best.identity] = _recall(cache, best)
    chosen = _options[best.identity]
    return best if chosen == BEST else toolchain(chosen)


def load(key: str, cache: Cache) -> ctypes.CDLL | None:
    """A library that was built before, by its key; None when it is there no more."""
    if key not in _loaded:
        entry = cache.find(key)
        if entry is None:
            return None
        try:
            _loaded[key] = ctypes.CDLL(str(entry / LIBRARY))
        except OSError:  # another process removed it, or files there may not be executed
            return None
    return _loaded[key]


def whole_text(kernels: str, tools: Toolchain) -> str:
    """A C file that compiles."""
    return f"{prelude(kernels, tools.vectorized)}\n{kernels}"


def library_key(source: Source, tools: Toolchain) -> str:
    # Comments name lines of the user's, which move when something else in the file is edited.
    return key_of(FORMAT, tools.identity, repr(tools), _COMMENT.sub("", whole_text(str(source), tools)))


def _library(source: Source, tools: Toolchain, cache: Cache | None) -> ctypes.CDLL:
    key = library_key(source, tools)
    if key not in _loaded:
        _loaded[key] = _found_or_built(source, whole_text(str(source), tools), tools, cache, key)
    return _loaded[key]


def _found_or_built(source: Source, text: str, tools: Toolchain, cache: Cache | None, key: str) -> ctypes.CDLL:
    problem: OSError | None = None
    if cache is not None:
        try:
            return _through_cache(source, text, tools, cache, key)
        except OSError as error:  # no space, not to be written, not to be executed from: then without it
            problem = error
    with tempfile.TemporaryDirectory(prefix="bothways-") as folder:
        _compile(source, tools, Path(folder))
        try:
            library = ctypes.CDLL(f"{folder}/{LIBRARY}")
        except OSError as error:
            raise Failure(str(error)) from None
    if problem is not None:
        warn_unused(problem)
    return library


def _through_cache(source: Source, text: str, tools: Toolchain, cache: Cache, key: str) -> ctypes.CDLL:
    entry = cache.find(key)
    if entry is not None:
        return ctypes.CDLL(str(entry / LIBRARY))
    with cache.workplace() as folder:
        _compile(source, tools, folder)
        for path in folder.iterdir():
            if path.name != LIBRARY:
                path.unlink()
        (folder / SOURCE).write_text(text, encoding="utf-8")
        return ctypes.CDLL(str((cache.add(key, folder) or folder) / LIBRARY))


def _compile(source: Source, tools: Toolchain, folder: Path) -> None:
    """Build the library in ``folder``; the names there are always the same, and with them the result."""
    units = source.units(cpus())
    for number, unit in enumerate(units):
        (folder / f"{number}.c").write_text(f"{prelude(unit, tools.vectorized)}\n{unit}", encoding="utf-8")
    _run([tools.compile_command(f"{number}.c", f"{number}.o") for number in range(len(units))], folder)
    _run([tools.link_command([f"{number}.o" for number in range(len(units))], LIBRARY)], folder)


def _run(commands: Sequence[list[str]], folder: Path) -> None:
    """Run commands side by side."""
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    text=True, errors="replace",
                )
            )
        said = [process.communicate()[1] for process in running]
    except OSError as error:
        raise Failure(f"{commands[0][0]}: {error}") from None
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
    for process, text, command in zip(running, said, commands, strict=True):
        if process.returncode:
            raise Failure(f"{' '.join(command)}\nfailed with status {process.returncode}:\n{text[:4000]}")


def cpus() -> int:
    """How many processes this one may run side by side."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Which options of the compiler work is found out once for each compiler, and kept in the cache as well.


def _problem(tools: Toolchain, text: str) -> str:
    """What keeps a C file from being compiled and loaded, or "" when nothing does."""
    with tempfile.TemporaryDirectory(prefix="bothways-") as folder:
        try:
            _compile(Source((), (text,)), tools, Path(folder))
            ctypes.CDLL(f"{folder}/{LIBRARY}")
        except (Failure, OSError) as problem:
            return str(problem)
    return ""


def _recall(cache: Cache | None, best: Toolchain) -> tuple[int, ...]:
    entry = cache.find(_options_key(best)) if cache is not None else None
    if entry is not None:
        with contextlib.suppress(OSError):  # another process removed it
            return tuple(map(int, (entry / OPTIONS).read_text().split()))
    return BEST


def _remember(cache: Cache | None, best: Toolchain, working: tuple[int, ...]) -> None:
    _options[best.identity] = working
    if cache is not None:
        with contextlib.suppress(OSError), cache.workplace() as folder:  # it may be full, or only for reading
            (folder / OPTIONS).write_text(" ".join(map(str, working)))
            cache.add(_options_key(best), folder)


def _options_key(best: Toolchain) -> str:
    return key_of(FORMAT, OPTIONS, repr(best))
