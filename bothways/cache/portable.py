"""``bothways.cache.save(path)`` and ``load(path)``: what was compiled, for other machines of the same kind.

A shipment is one file with entries of the cache: programs as text, the C and CUDA of their kernels, and what these were
built to. Whoever wrote it could have us run anything, so it is read only where the cache itself would be: where no
other user could have written it. What does not fit this machine is left out: an entry keeps its key, which is the hash
of all it depends on, and code that was built is taken only where its source has that key here.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bothways.cache.disk import CHECKSUMS, Cache, checksums, encoded, is_key, open_cache, whole_files
from bothways.cache.keys import versions
from bothways.cache.trust import read_own_file
from bothways.errors import BothwaysError
from bothways.files import target_of, write_whole

FORMAT = "bothways 1"
MANIFEST = "manifest"
MOST_BYTES = 1 << 30  # of one shipment, unpacked

# The name of a file, or how it ends -> whether an entry that has such a file is what this machine would have built.
ACCEPTS: dict[str, Callable[[str, Mapping[str, bytes]], bool]] = {}


class NotLoaded(BothwaysError, ValueError):
    """A file is no shipment of the cache, or not one to trust."""


@dataclass(frozen=True)
class Shipment:
    """What was saved or loaded: entries, how many were left out and why, bytes."""

    path: str
    entries: int
    left_out: int = 0
    reason: str = ""
    bytes: int = 0

    def __str__(self) -> str:
        said = f"{self.entries} entries, {self.bytes / 2**20:.1f} MiB, {self.path}"
        return f"{said}; {self.left_out} left out: {self.reason}" if self.left_out else said


def save(path: str | os.PathLike[str]) -> Shipment:
    """Write everything in the cache on disk to one file, for other machines of the same kind.

    They need the same CPU, Python, PyTorch, C compiler and version of bothways, since what is compiled depends on all
    of them. The file holds none of your data, but it does hold the source lines that kernels come from.

    - ``path``: the file to write.

    >>> import tempfile, os
    >>> double = bothways.compile(lambda x: x.sin() * 2)
    >>> _ = double(torch.ones(1000))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = bothways.cache.save(os.path.join(folder, "kernels.zip"))
    ...     loaded = bothways.cache.load(os.path.join(folder, "kernels.zip"))
    >>> saved.entries == loaded.entries
    True
    """
    target = target_of(path)
    content, count = packed()
    write_whole(target, content, 0o600)
    return Shipment(str(target), count, bytes=len(content))


def load(path: str | os.PathLike[str]) -> Shipment:
    """Add what ``save`` wrote to the cache on disk, where the next compilation finds it.

    The file holds code that will run, so it is only read if no other user could have written it; otherwise
    ``NotLoaded`` says what is wrong. Entries that are there already stay, and what was built by another compiler or for
    another kind of machine is left out.

    - ``path``: the file to read.

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bothways.cache.save(os.path.join(folder, "kernels.zip"))
    ...     bothways.cache.load(os.path.join(folder, "kernels.zip")).left_out
    0
    """
    if isinstance(path, int) or not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"the path of a file is expected, not {path!r}")
    try:
        content = read_own_file(Path(path))
    except OSError as error:
        raise NotLoaded(f"{path}: {error.strerror or error}") from None
    return unpacked(content, str(path))


def packed() -> tuple[bytes, int]:
    """All entries as one file, and how many there are."""
    cache = open_cache()
    buffer, count = io.BytesIO(), 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, encoded(f"{FORMAT}\n{versions()}"))
        for key in [] if cache is None else cache.keys():
            files = None if cache is None else cache.read(key)
            if files is not None:
                count += 1
                for name, file in {**files, CHECKSUMS: checksums(key, files)}.items():
                    archive.writestr(f"{key}/{name}", file)
    return buffer.getvalue(), count


def unpacked(content: bytes, path: str = "(bytes)") -> Shipment:
    """Put the entries of a shipment into the cache; the caller knows where it comes from."""
    cache = open_cache()
    if cache is None:
        return Shipment(path, 0, 1, "the cache is off")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(item.file_size for item in archive.infolist()) > MOST_BYTES:
                raise NotLoaded(f"{path}: it is larger than {MOST_BYTES} bytes")
            head, _, made_with = archive.read(MANIFEST).decode().partition("\n")
            entries = dict(_entries(archive))
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, RuntimeError, NotImplementedError) as error:
        raise NotLoaded(f"{path} is no shipment of the cache: {error}") from None
    if head != FORMAT:
        raise NotLoaded(f"{path} is no shipment of the cache of this version")
    if made_with != versions():
        return Shipment(path, 0, len(entries), "made with another Python, PyTorch or bothways", len(content))
    taken = sum(_take(cache, key, files) for key, files in entries.items())
    reason = "built by another compiler, for another machine, or damaged"
    return Shipment(path, taken, len(entries) - taken, reason if taken < len(entries) else "", len(content))


def _entries(archive: zipfile.ZipFile) -> Iterator[tuple[str, dict[str, bytes]]]:
    entries: dict[str, dict[str, bytes]] = {}
    for name in archive.namelist():
        key, _, file = name.partition("/")
        # Names of entries are hashes, and those of files have no folder: nothing is written elsewhere.
        if is_key(key) and file and "/" not in file and file not in (".", "..") and "\0" not in file:
            entries.setdefault(key, {})[file] = archive.read(name)
    yield from entries.items()


def _take(cache: Cache, key: str, files: dict[str, bytes]) -> bool:
    """Whether an entry is whole and of this machine; then it is in the cache."""
    whole = whole_files(key, files)
    if whole is None or not all(accepts(key, whole) for end, accepts in ACCEPTS.items() if _has(whole, end)):
        return False
    if cache.read(key) is not None:
        return True
    with contextlib.suppress(OSError), cache.workplace() as folder:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        return cache.add(key, folder) is not None or cache.read(key) is not None
    return False


def _has(files: Mapping[str, bytes], end: str) -> bool:
    return any(name.endswith(end) for name in files)
