"""``BOTHWAYS_DUMP=folder``: writes what was generated for each graph where people can read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bothways.errors import NoCompiler, warn_once
from bothways.source_text import printable, writable

DUMP_VARIABLE = "BOTHWAYS_DUMP"


def dump(name: str, listing: Callable[[str], Mapping[str, str]]) -> None:
    """Write ``001_forward.py`` and what belongs beside it, with the next free number, when the user asked for it.

    ``listing`` is told how the files are called and gives their texts by the ends of their names.
    """
    folder = os.environ.get(DUMP_VARIABLE)
    if not folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = _next_file(Path(folder), name)
        for suffix, text in listing(path.stem).items():
            path.with_suffix(suffix).write_text(writable(text), encoding="utf-8")
    except (OSError, NoCompiler) as error:  # what the user wanted to read is missing, what was to run is not
        warn_once(f"{DUMP_VARIABLE} is ignored: {printable(str(error))}")


def _next_file(folder: Path, name: str) -> Path:
    """A new file; other processes may be numbering theirs in the same folder."""
    taken = [int(path.name[:3]) for path in folder.glob("[0-9][0-9][0-9]_*.py")]
    number = max(taken, default=0)
    while True:
        number += 1
        path = folder / f"{number:03}_{name}.py"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
