"""Runs a program as ``python`` itself would: a script, ``-m module`` or ``-c command``.

It runs as ``__main__`` with the same ``sys.argv`` and ``sys.path``; its tracebacks start in its own code.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType

import bothways
from bothways.files import target_of
from bothways.runtime.tracebacks import show_users_frames

# Files whose frames stand between the interpreter and the program, and say nothing to its author.
OWN_FILES = (runpy.__file__, "<frozen runpy>")
OWN_FOLDERS = (os.path.join(os.path.dirname(bothways.__file__), "commands", ""),)
OWN_MAIN = os.path.join(os.path.dirname(bothways.__file__), "__main__.py")


def program_of(arguments: list[str]) -> Callable[[], None] | str:
    """What runs the program that ``arguments`` name; or a sentence on what is wrong with them."""
    first, *rest = arguments
    if first in OPTIONS:
        if not rest:
            return f"argument expected for the {first} option"
        return lambda: OPTIONS[first](rest[0], rest[1:])
    if first.startswith("-"):
        return f"unknown option {first}"
    return lambda: run_script(first, rest)


def is_missing(arguments: list[str]) -> bool:
    """Whether the script that ``arguments`` name is not there."""
    return not arguments[0].startswith("-") and not os.path.exists(arguments[0])


def file_for(path: str) -> Path | str:
    """The file that a command will write, wherever the program goes meanwhile; or a sentence on why it cannot."""
    try:
        return target_of(path).absolute()
    except (OSError, TypeError) as error:
        return f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}"


def run_script(path: str, arguments: list[str]) -> None:
    """What ``python path`` does."""
    sys.argv[:] = [path, *arguments]
    if path.endswith(".pyc") or pkgutil.get_importer(path) is not None:  # compiled, or a folder or archive
        set_first_path(path)
        runpy.run_path(path, run_name="__main__")
        return
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    set_first_path(os.path.dirname(os.path.realpath(path)))
    run_source(source, os.path.abspath(path))


def run_module(name: str, arguments: list[str]) -> None:
    """What ``python -m name`` does."""
    sys.argv[:] = ["-m", *arguments]  # run_module puts the module's file in place of "-m"
    set_first_path(os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_command(command: str, arguments: list[str]) -> None:
    """What ``python -c command`` does."""
    sys.argv[:] = ["-c", *arguments]
    set_first_path("")
    run_source(command)


OPTIONS: dict[str, Callable[[str, list[str]], None]] = {"-m": run_module, "-c": run_command}


def run_source(source: str | bytes, path: str | None = None) -> None:
    """Execute ``source`` as the module ``__main__``, which stays in place for what runs at exit."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if path is not None:
        module.__file__ = path
    sys.modules["__main__"] = module
    exec(compile(source, path or "<string>", "exec", dont_inherit=True), module.__dict__)


def set_first_path(entry: str) -> None:
    """Put the program's place first on the import path, where ``python -m`` has put the current folder."""
    if not sys.flags.safe_path:
        sys.path[0] = entry


def hide_own_frames() -> None:
    """Have tracebacks of uncaught exceptions begin where the program does."""
    show_users_frames()
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        first = trace
        while first is not None and is_own(first.tb_frame.f_code.co_filename):
            first = first.tb_next
        # An error before the program's first line, such as a missing file, has nothing else to show.
        show(kind, error.with_traceback(first), first)

    sys.excepthook = excepthook


def is_own(filename: str) -> bool:
    """Whether a file is one that only leads to the program."""
    return filename in OWN_FILES or filename == OWN_MAIN or filename.startswith(OWN_FOLDERS)
