"""What was made before, kept on disk: texts and shared libraries, found by the hash of all they depend on.

An entry is a folder that appears at once, by a rename, and is never changed; it is removed the same way. So any
number of processes may read, write, clear and crash at the same time. Nothing is loaded that another user could
have written, or that is not what was stored there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bothways.cache.trust import own_folder, read_own_files
from bothways.config import config
from bothways.errors import warn_once
from bothways.source_text import printable

# What may be otherwise in a moment: memory, processes, files, space.
PASSING_ERRORS = frozenset(
    [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.ETXTBSY]
)
DIRECTORY_VARIABLE = "BOTHWAYS_CACHE_DIR"
CHECKSUMS = "checksums"
UNFINISHED = "unfinished-"  # how the names of folders begin that are no entries yet, or no more
ABANDONED = 3600  # seconds after which an unfinished folder is taken for the rest of a crash
_numbers = itertools.count()  # of what this process removed
LOOK_AT_SIZES = "00"  # how the keys begin whose storing measures the whole cache: one in 256


@dataclass(frozen=True)
class CacheInfo:
    """Where the cache is and what it holds."""

    directory: Path
    entries: int
    bytes: int
    limit: int

    def __str__(self) -> str:
        size, limit = (f"{number / 2**20:.1f} MiB" for number in (self.bytes, self.limit))
        return f"directory  {self.directory}\nentries    {self.entries}\nsize       {size}\nlimit      {limit}"


def directory() -> Path:
    """Where the cache is: ``BOTHWAYS_CACHE_DIR``, or a folder of the user's cache folder."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of these folders says that relative paths are to be ignored.
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "bothways"


class Cache:
    """The entries below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, key: str) -> Path | None:
        """The folder of an entry that is whole and ours; an entry that is not is removed."""
        return None if self.read(key) is None else self.root / key

    def read(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry that is whole and ours; an entry that is not is removed."""
        entry = self.root / key
        files, problem = None, None
        try:
            files = whole_files(key, read_own_files(entry))
        except FileNotFoundError:
            if not os.path.lexists(entry):
                return None
        except OSError as error:
            problem = error
        if files is None:
            if problem is None or problem.errno not in PASSING_ERRORS:
                self.drop(key)
            if problem is not None:
                warn_once(f"entries of the cache are not used: {_said(problem)}")
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)  # entries that were not used for the longest time go first
        return files

    def keep(self, key: str, texts: Mapping[str, str]) -> None:
        """Make an entry of texts by name; a cache that is full or only for reading stays as it is."""
        with contextlib.suppress(OSError), self.workplace() as folder:
            for name, text in texts.items():
                (folder / name).write_bytes(encoded(text))
            self.add(key, folder)

    def drop(self, key: str) -> None:
        """Remove an entry that is not what it should be."""
        self._remove(self.root / key)

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """An empty folder to build an entry in."""
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, key: str, folder: Path) -> Path | None:
        """Make what is in ``folder`` the entry ``key``. None when it cannot be, or another process was faster."""
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        for path in folder.iterdir():
            path.chmod(0o600)  # whatever the compiler and the umask made of it
        write_private(folder / CHECKSUMS, checksums(key, files))
        try:
            os.rename(folder, self.root / key)
        except OSError:
            return None
        if key.startswith(LOOK_AT_SIZES):
            self.shrink(config.kernel_cache_megabytes * 2**20)
        return self.root / key

    def shrink(self, limit: int) -> None:
        """Remove the entries that were not used for the longest time until the rest fits."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for _, size, entry in entries:
            total += size
            if total > limit:
                self._remove(entry)
        self._remove_abandoned()

    def keys(self) -> list[str]:
        """Those of all entries, sorted."""
        return sorted(entry.name for _, _, entry in self._entries())

    def info(self) -> CacheInfo:
        entries = self._entries()
        limit = config.kernel_cache_megabytes * 2**20
        return CacheInfo(self.root, len(entries), sum(size for _, size, _ in entries), limit)

    def clear(self) -> int:
        """Remove every entry; returns how many there were."""
        entries = self._entries()
        for _, _, entry in entries:
            self._remove(entry)
        self._remove_abandoned()
        return len(entries)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """When each entry was used last, its size, and where it is."""
        entries = []
        for path in self._folders():
            if not path.name.startswith(UNFINISHED):
                with contextlib.suppress(OSError):  # another process removed it
                    size = sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(path))
                    entries.append((path.stat().st_mtime, size, path))
        return entries

    def _folders(self) -> list[Path]:
        """Only folders that look like ours: a cache may have been put where other things are."""
        try:
            with os.scandir(self.root) as listing:
                names = [item.name for item in listing if item.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [self.root / name for name in names if is_key(name) or name.startswith(UNFINISHED)]

    def _remove(self, entry: Path) -> None:
        """No process ever sees half of an entry: it is renamed first."""
        doomed = self.root / f"{UNFINISHED}{os.getpid()}-{next(_numbers)}-{entry.name}"
        with contextlib.suppress(OSError):
            os.rename(entry, doomed)
            if doomed.is_symlink() or not doomed.is_dir():
                doomed.unlink()
            else:
                shutil.rmtree(doomed, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        for path in self._folders():
            with contextlib.suppress(OSError):
                if path.name.startswith(UNFINISHED) and path.stat().st_mtime < time.time() - ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)


def open_cache() -> Cache | None:
    """The cache, or None when it is switched off or cannot be trusted; then a warning says why."""
    if not config.kernel_cache:
        return None
    try:
        # Whoever may write there, or to a folder or link on the way, could have us load their code.
        return Cache(own_folder(directory()))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        warn_unused(error)
        return None


def warn_unused(problem: object) -> None:
    hint = f"set {DIRECTORY_VARIABLE} to a folder that is yours alone, or config.kernel_cache to False"
    warn_once(f"kernels are not kept on disk: {_said(problem)}; {hint}")


def _said(problem: object) -> str:
    """What is wrong, in the same words whichever of our files it was found at: people are told once."""
    reason = getattr(problem, "strerror", None)
    return str(problem) if reason is None else f"{reason}: {printable(str(directory()))}"


def key_of(*facts: str) -> str:
    """The name of an entry: everything its content depends on, hashed."""
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{len(fact)}:".encode() + encoded(fact))
    return digest.hexdigest()


def is_key(name: str) -> bool:
    return len(name) == 64 and not name.strip("0123456789abcdef")


def write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def encoded(text: str) -> bytes:
    """Also text with names of files that are no text."""
    return text.encode("utf-8", "surrogatepass")


def decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def checksums(key: str, files: Mapping[str, bytes]) -> bytes:
    """What an entry is known by. It names its key: an entry under another name is none."""
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    return encoded("".join([f"# {key}\n", *lines]))


def whole_files(key: str, files: dict[str, bytes]) -> dict[str, bytes] | None:
    """The files of an entry without their checksums; None when they are not what was stored."""
    expected = files.pop(CHECKSUMS, b"")
    return files if files and checksums(key, files) == expected else None
