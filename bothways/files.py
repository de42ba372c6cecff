"""Files that people ask for: a report, a trace, a shipment of the cache.

What is wrong with a path is said before anything is done for it; a file appears whole or not at all.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def target_of(path: str | os.PathLike[str]) -> Path:
    """The file that is to be written; raises in words where none can be."""
    if isinstance(path, int) or not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"the path of a file is expected, not {path!r}")
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a file is expected, and this is a folder", str(target))
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", str(target.absolute().parent))
    return target


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int = 0o666) -> Path:
    """Write a file; a reader never sees half of it, and nothing else is left where it cannot be written."""
    target = target_of(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target
