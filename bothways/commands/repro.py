"""``python -m bothways repro [-o FILE] script.py [arguments]``: runs a program, compares each graph with what was
captured before it is used, and writes the first that fails or differs as a small script with its inputs."""

from __future__ import annotations

import sys
from pathlib import Path

from bothways.api.decorators import set_stance
from bothways.api.dropin import install
from bothways.commands.running import file_for, hide_own_frames, is_missing, program_of
from bothways.testing.reproducing import Watcher

USAGE = "usage: python -m bothways repro [-o FILE] script.py [arguments]"


def reproduce(arguments: list[str]) -> int:
    """Run a program and watch; 1 when a graph fails or differs, else what the program itself ended with."""
    output = "repro.py"
    if arguments[:1] == ["-o"]:
        output, arguments = "".join(arguments[1:2]), arguments[2:]
    path = file_for(output)
    program = program_of(arguments) if arguments else "a program is expected"
    if isinstance(program, str) or isinstance(path, str):
        print(f"{path if isinstance(path, str) else program}\n{USAGE}", file=sys.stderr)
        return 2
    if is_missing(arguments):
        program()
    status = 0
    watcher = Watcher(path)
    install()
    hide_own_frames()
    set_stance(force_backend=watcher)
    try:
        program()
    except SystemExit as error:
        if error.code not in (None, 0):
            status = error.code if isinstance(error.code, int) else 1
            print(f"the program ended with {error.code}", file=sys.stderr)
    finally:
        said = _said(watcher, path)
        print(said, file=sys.stderr)
    return status if watcher.problem is None else 1


def _said(watcher: Watcher, path: Path) -> str:
    count = f"{watcher.graphs} graph{'s' * (watcher.graphs != 1)}"
    if watcher.problem is None:
        return f"{count}: none goes wrong. If results differ, capture is at fault: see bothways.testing.check"
    head = f"one of {count} goes wrong: {watcher.problem}"
    return f"{head}\n{watcher.unwritten or f'wrote {path}; run it with python'}"
