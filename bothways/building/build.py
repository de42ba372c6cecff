"""Builds the C of a graph into a shared library and loads it: from the cache, or with the system's compiler."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bothways.building.compiling import Failure, TookTooLong, failure_of, run
from bothways.building.declarations import BASIC, prelude
from bothways.building.loading import Library
from bothways.building.toolchain import BEST, MEANS, Toolchain, is_choice, probe, toolchain
from bothways.cache.disk import Cache, decoded, encoded, key_of, open_cache, warn_unused
from bothways.cache.portable import ACCEPTS
from bothways.cache.trust import safe_folder
from bothways.config import config
from bothways.errors import BuildFailed, NoCompiler, warn_once
from bothways.record.generated import stage
from bothways.record.progress import current_line

FORMAT = "2"  # changes when what an entry of the cache holds changes
SOURCE, LIBRARY, OPTIONS = "kernels.c", "kernels.so", "options"
UNIT = 12000  # characters of C that are worth a compiler of their own: some 80 ms of its time


@dataclass(frozen=True)
class Function:
    """A kernel in C. ``comment`` says where it comes from."""

    comment: str
    signature: str
    body: str

    def __str__(self) -> str:
        # Not to be repeated in the place of every call: an optimizer has hundreds of some kernels.
        return f"{self.comment}__attribute__((noinline))\nstatic {self.definition}"

    @property
    def definition(self) -> str:
        return f"{self.signature} {{\n{self.body}\n}}\n"


@dataclass(frozen=True)
class CSource:
    """The C of a graph: kernels, and the functions Python calls, which call kernels."""

    kernels: tuple[Function, ...]
    entries: tuple[str, ...]
    helpers: dict[str, str] = field(default_factory=lambda: BASIC, repr=False, compare=False)

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.kernels, *self.entries]))

    def whole(self, part: str, tools: Toolchain) -> str:
        """A C file that compiles: a part of the text, or all of it, with what it needs above it."""
        return f"{prelude(part, tools.vectorized, self.helpers)}\n{part}"

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


_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()  # by key: what is loaded already
_options: dict[str, tuple[int, ...]] = {}  # by the identity of a compiler: which of its options work


@stage("build")
def build(source: CSource) -> Library:
    """The loaded library of kernels."""
    library, tools = _built(source)
    if not tools.threads:
        warn_once(f"kernels use one thread: {tools.command[0]} does not work with PyTorch's OpenMP runtime")
    return library


def library_of(source: CSource) -> Library:
    """The loaded library of any C source. NoCompiler when the compiler does not work, or not now."""
    return _built(source)[0]


def _built(source: CSource) -> tuple[Library, Toolchain]:
    """The library, and the compiler with the options that it was built with."""
    cache = open_cache()
    tools = working_tools(cache)
    try:
        return _library(source, tools, cache), tools
    except Failure as failure:
        if failure.passing:
            raise _troubled(tools, str(failure)) from None
    # It was the source, the flags, or the moment.
    try:
        working = probe(lambda tools, text: _problem(tools, text, cache))
    except Failure as failure:
        raise _troubled(tools, str(failure)) from None
    except GivenUp:
        raise
    except NoCompiler as error:
        raise _troubled(tools, error.problem) from None
    if toolchain(working) != tools:
        _remember(cache, toolchain(), working)
        tools = toolchain(working)
    return _once_more(source, tools, cache), tools


def _once_more(source: CSource, tools: Toolchain, cache: Cache | None) -> Library:
    """A source whose build failed, now that the compiler is known to work; in the end without the cache."""
    try:
        return _library(source, tools, cache)
    except Failure as failure:
        if failure.passing:
            raise _troubled(tools, str(failure)) from None
        if cache is None:
            raise BuildFailed(str(failure)) from None
        problem = failure
    try:
        library = _library(source, tools, None)
    except Failure:
        raise BuildFailed(str(problem)) from None
    warn_unused(problem)
    return library


def working_tools(cache: Cache | None) -> Toolchain:
    """The compiler with the best options, as far as is known, that work."""
    best = toolchain()
    if best.identity not in _options:
        _options[best.identity] = _recall(cache, best)
    chosen = _options[best.identity]
    return best if chosen == BEST else toolchain(chosen)


def compiler_problem() -> str:
    """What keeps kernels from being built now, in the words of the compiler; "" when nothing does. Nothing is kept."""
    try:
        return _problem(working_tools(open_cache()), MEANS, None)
    except NoCompiler as error:
        return error.problem
    except Failure as failure:
        return str(failure)


def load(key: str, cache: Cache) -> Library | None:
    """A library that was built before, by its key; None when it is there no more."""
    library = _loaded.get(key)
    if library is None:
        entry = cache.find(key)
        if entry is None:
            return None
        try:
            library = Library(str(entry / LIBRARY), unloads=working_tools(cache).unloads)
        except OSError:  # another process removed it, or files there may not be executed
            return None
    return _loaded.setdefault(key, library)  # another thread may have been faster


def library_key(source: CSource, tools: Toolchain) -> str:
    # Comments name lines of the user's, which move when something else in the file is edited.
    return key_of(FORMAT, tools.identity, repr(tools), _COMMENT.sub("", source.whole(str(source), tools)))


def _is_built_here(key: str, files: Mapping[str, bytes]) -> bool:
    """Whether the library of a shipment is what this compiler would have built: its source has the same key here."""
    try:
        tools = working_tools(open_cache())
        return key == key_of(FORMAT, tools.identity, repr(tools), _COMMENT.sub("", decoded(files[SOURCE])))
    except (NoCompiler, KeyError, UnicodeDecodeError):
        return False


ACCEPTS[LIBRARY] = _is_built_here


def _library(source: CSource, tools: Toolchain, cache: Cache | None) -> Library:
    key = library_key(source, tools)
    library = _loaded.get(key)
    if library is None:
        library = _found_or_built(source, source.whole(str(source), tools), tools, cache, key)
    return _loaded.setdefault(key, library)  # another thread may have been faster


def _found_or_built(source: CSource, text: str, tools: Toolchain, cache: Cache | None, key: str) -> Library:
    problem: OSError | None = None
    if cache is not None:
        try:
            return _through_cache(source, text, tools, cache, key)
        except OSError as error:  # no space, not to be written, not to be executed from: then without it
            problem = error
        except Failure as failure:  # a compiler that finds no space says so in its own words
            if not failure.passing:
                raise
    with _temporary_folder() as folder:
        _compile_patiently(source, tools, folder)
        if cache is not None and problem is None:
            problem = _problem_of_storing(folder, text, cache, key)
        try:
            library = Library(f"{folder}/{LIBRARY}", unloads=tools.unloads)
        except OSError as error:
            raise Failure(str(error)) from None
    if problem is not None:
        warn_unused(problem)
    return library


def _problem_of_storing(built: Path, text: str, cache: Cache, key: str) -> OSError | None:
    try:
        with cache.workplace() as folder:
            shutil.copyfile(built / LIBRARY, folder / LIBRARY)
            (folder / SOURCE).write_bytes(encoded(text))
            cache.add(key, folder)
    except OSError as error:
        return error
    return None


def _through_cache(source: CSource, text: str, tools: Toolchain, cache: Cache, key: str) -> Library:
    entry = cache.find(key)
    if entry is not None:
        return Library(str(entry / LIBRARY), unloads=tools.unloads)
    with cache.workplace() as folder:
        _compile(source, tools, folder)
        for path in folder.iterdir():
            if path.name != LIBRARY:
                path.unlink()
        (folder / SOURCE).write_bytes(encoded(text))
        return Library(str((cache.add(key, folder) or folder) / LIBRARY), unloads=tools.unloads)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder to build in, where no other user can put anything in the place of what was built."""
    try:
        place = safe_folder(Path(tempfile.gettempdir()))
        folder = tempfile.TemporaryDirectory(prefix="bothways-", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise failure_of(error, "there is no temporary folder") from None
    with folder as name:
        yield Path(name)


# The compiler ----------------------------------------------------------------------------------------------

PAUSES = (0.1, 0.5)  # seconds to wait before what failed in passing is tried again
TRIES = 3  # builds that may fail before no more are tried in this process
SMALL = 10  # seconds in which a compiler that works compiles a few lines, whatever else there is to do


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a compiler, how often that was seen, and how many seconds it was given, where it used them."""

    problem: str
    count: int
    seconds: float = 0

    @property
    def is_final(self) -> bool:
        """Whether trying again is of no use; the user may have allowed for more time since."""
        more_time = self.seconds and not 0 < config.compiler_seconds <= self.seconds
        return self.count >= TRIES and not more_time


class GivenUp(NoCompiler):
    """A compiler that is not tried any more, or was stopped; what is wrong is noted already."""


_troubles: dict[str, Trouble] = {}  # by the identity of a compiler


def _troubled(tools: Toolchain, problem: str, *, seconds: float = 0, count: int = 1) -> NoCompiler:
    """Note that the compiler did not work."""
    known = _troubles.get(tools.identity)
    _troubles[tools.identity] = Trouble(problem, count + (0 if known is None else known.count), seconds)
    return NoCompiler(problem)


def _compile(source: CSource, tools: Toolchain, folder: Path) -> None:
    """Build the library in ``folder``; the names there are always the same, and with them the result."""
    trouble = _troubles.get(tools.identity)
    if trouble is not None and trouble.is_final:
        raise GivenUp(trouble.problem)
    try:
        _run_compiler(source, tools, folder, config.compiler_seconds)
    except TookTooLong as error:
        problem = f"the C compiler was stopped after config.compiler_seconds = {error.seconds}: {tools.command[0]}"
        count = 1 if _is_alive(tools, error.seconds) else TRIES
        _troubled(tools, problem, seconds=error.seconds, count=count)
        raise GivenUp(problem) from None
    _troubles.pop(tools.identity, None)


def _run_compiler(source: CSource, tools: Toolchain, folder: Path, seconds: float) -> None:
    units = source.units(cpus())
    for number, unit in enumerate(units):
        text = source.whole(unit, tools)
        (folder / f"{number}.c").write_text(text, encoding="utf-8", errors="backslashreplace")
    line = current_line()
    if line is not None:
        line.build(len(source.kernels), lambda: len(list(folder.glob("*.o"))) / len(units))
    run([tools.compile_command(f"{number}.c", f"{number}.o") for number in range(len(units))], folder, seconds)
    run([tools.link_command([f"{number}.o" for number in range(len(units))], LIBRARY)], folder, seconds)


def _is_alive(tools: Toolchain, seconds: float) -> bool:
    """Whether a compiler that was stopped does anything at all."""
    try:
        with _temporary_folder() as folder:
            _run_compiler(CSource((), (MEANS,)), tools, folder, min(seconds, SMALL))
    except (TookTooLong, Failure, OSError):
        return False
    return True


def _compile_patiently(source: CSource, tools: Toolchain, folder: Path) -> None:
    """Build; what is a matter of the moment is tried again."""
    for pause in PAUSES:
        try:
            return _compile_in(source, tools, folder)
        except Failure as failure:
            if not failure.passing:
                raise
        time.sleep(pause)
    return _compile_in(source, tools, folder)


def _compile_in(source: CSource, tools: Toolchain, folder: Path) -> None:
    try:
        _compile(source, tools, folder)
    except OSError as error:
        raise failure_of(error, str(folder)) from None


def cpus() -> int:
    """How many processes this one may run side by side."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Which options of the compiler work is found out once for each compiler, and kept in the cache as well.


def _problem(tools: Toolchain, text: str, cache: Cache | None) -> str:
    """What keeps a C file from being compiled and loaded, or "" when nothing does. Failure when it is the moment."""
    source = CSource((), (text,))
    try:
        with _temporary_folder() as folder:
            return _problem_in(folder, source, tools)
    except Failure:
        if cache is None:
            raise
    try:
        with cache.workplace() as folder:
            return _problem_in(folder, source, tools)
    except OSError as error:
        raise failure_of(error, str(cache.root)) from None


def _problem_in(folder: Path, source: CSource, tools: Toolchain) -> str:
    try:
        _compile_patiently(source, tools, folder)
        library = Library(f"{folder}/{LIBRARY}", unloads=tools.unloads)
    except Failure as failure:
        if failure.passing:
            raise
        return str(failure)
    except OSError as error:
        return str(error)
    if source.entries == (MEANS,) and library.probe() != 1:
        return "what it compiles does not compute what C with these flags says"
    return ""


def _recall(cache: Cache | None, best: Toolchain) -> tuple[int, ...]:
    key = _options_key(best)
    files = None if cache is None else cache.read(key)
    if cache is None or files is None:
        return BEST
    try:
        chosen = tuple(map(int, files[OPTIONS].split()))
    except (KeyError, ValueError):
        chosen = ()
    if is_choice(chosen):
        return chosen
    cache.drop(key)
    return BEST


def _remember(cache: Cache | None, best: Toolchain, working: tuple[int, ...]) -> None:
    _options[best.identity] = working
    if cache is not None:
        with contextlib.suppress(OSError), cache.workplace() as folder:  # it may be full, or only for reading
            (folder / OPTIONS).write_text(" ".join(map(str, working)))
            cache.add(_options_key(best), folder)


def _options_key(best: Toolchain) -> str:
    return key_of(FORMAT, OPTIONS, repr(best))
