"""``python -m bothways script.py args...``: runs a program with the drop-in installed. ``cache`` looks after kernels.

The program is given on the command line as it would be to ``python`` itself (a script, ``-m module`` or
``-c command``) and runs as ``__main__`` with the same ``sys.argv`` and ``sys.path``; its tracebacks start in
its own code.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType

from bothways.api.dropin import install
from bothways.cache.disk import Cache
from bothways.cache.disk import directory as cache_directory

USAGE = """\
usage: python -m bothways script.py [arguments]
       python -m bothways -m module [arguments]
       python -m bothways -c command [arguments]
       python -m bothways cache info | clear

Runs a Python program written for torch.compile on bothways, unchanged; or shows or empties the folder that keeps
built kernels for the next process."""

# Files whose frames stand between the interpreter and the program, and say nothing to its author.
OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def main(arguments: list[str]) -> int:
    """Run the program that ``arguments`` name; returns the exit status when there was none to run."""
    how, *rest = arguments or ["--help"]
    if how in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if how == "cache":
        return look_after_cache(rest)
    if how in OPTIONS:
        run = OPTIONS[how]
        if not rest:
            print(f"argument expected for the {how} option\n{USAGE}", file=sys.stderr)
            return 2
        what, *rest = rest
    elif how.startswith("-"):
        print(f"unknown option {how}\n{USAGE}", file=sys.stderr)
        return 2
    else:
        run, what = run_script, how
    install()
    hide_own_frames()
    run(what, rest)
    return 0


def look_after_cache(arguments: list[str]) -> int:
    """``cache info`` and ``cache clear``."""
    cache = Cache(cache_directory())
    match arguments:
        case ["info"]:
            print(cache.info())
        case ["clear"]:
            print(f"removed {cache.clear()} entries from {cache.root}")
        case _:
            print(f"cache info or cache clear\n{USAGE}", file=sys.stderr)
            return 2
    return 0


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
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        first = trace
        while first is not None and first.tb_frame.f_code.co_filename in OWN_FILES:
            first = first.tb_next
        # An error before the program's first line, such as a missing file, has nothing else to show.
        show(kind, error.with_traceback(first), first)

    sys.excepthook = excepthook


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
