"""Whether another user could have written a file, or could put another in its place.

A folder is walked to from the root, through every folder and link on the way; files are opened without following
links, and are asked, through the descriptor they are read from, who owns them and who may write them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

MOST_LINKS = 40  # as many as Linux follows
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(OSError):
    """Another user may have written this."""


def own_folder(path: Path) -> Path:
    """The real path of a folder that is ours alone, made where it is missing; ``Untrusted`` when it is not."""
    real = safe_folder(path, make=True)
    _check_own(real, os.lstat(real))
    return Path(real)


def safe_folder(path: Path, *, make: bool = False) -> str:
    """The real path of a folder where root alone can replace what is ours; ``Untrusted`` when others can.

    Others may own no part of the way, and may write to none, unless what is ours stays ours there, as it does in /tmp.
    """
    first, *names = path.absolute().parts
    done, links = first, 0
    _check_on_the_way(done, os.lstat(done))
    names.reverse()
    while names:
        name = names.pop()
        if name == os.pardir:
            done = os.path.dirname(done)
            continue
        here = os.path.join(done, name)
        facts = _facts(here, make)
        if not stat.S_ISLNK(facts.st_mode):
            _check_on_the_way(here, facts)
            done = here
            continue
        links += 1
        if not _is_trusted_owner(facts):
            raise Untrusted(f"{here} is a link that belongs to another user")
        if links > MOST_LINKS:
            raise Untrusted(f"{path} leads through too many links")
        target = Path(os.readlink(here))
        if target.is_absolute():
            done = target.anchor
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return done


def read_own_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name, when both it and they are ours alone."""
    # Where a pipe lies in the place of a file, the open does not wait for it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(folder, flags | os.O_DIRECTORY)
    try:
        _check_own(str(folder), os.fstat(descriptor))
        files = {}
        for name in sorted(os.listdir(descriptor)):
            path = os.path.join(folder, name)
            if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                raise Untrusted(f"{path} is a link, and what it leads to can be changed by other users")
            with open(os.open(name, flags, dir_fd=descriptor), "rb") as file:
                _check_own_file(path, os.fstat(file.fileno()))
                files[name] = file.read()
        return files
    finally:
        os.close(descriptor)


def read_own_file(path: Path) -> bytes:
    """What a file holds that is ours alone, below folders where others cannot replace it."""
    real = os.path.join(safe_folder(path.absolute().parent), path.name)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(real, flags), "rb") as file:
        _check_own_file(real, os.fstat(file.fileno()))
        return file.read()


def _facts(path: str, make: bool) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(path, 0o700)
    return os.lstat(path)


def _is_trusted_owner(facts: os.stat_result) -> bool:
    return facts.st_uid in (0, os.geteuid())


def _check_on_the_way(path: str, facts: os.stat_result) -> None:
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if not _is_trusted_owner(facts):
        raise Untrusted(f"{path} belongs to another user")
    writers = facts.st_mode & OTHERS_WRITE
    if writers and not facts.st_mode & stat.S_ISVTX and not (writers == stat.S_IWGRP and _is_own_group(facts.st_gid)):
        raise Untrusted(f"{path} can be changed by other users")


def _check_own(path: str, facts: os.stat_result) -> None:
    if facts.st_uid != os.geteuid():
        raise Untrusted(f"{path} belongs to another user")
    if facts.st_mode & OTHERS_WRITE:
        raise Untrusted(f"{path} can be changed by other users")


def _check_own_file(path: str, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise Untrusted(f"{path} is no file")
    _check_own(path, facts)
    if facts.st_nlink != 1:
        raise Untrusted(f"{path} has another name elsewhere")


def _is_own_group(gid: int) -> bool:
    """Whether a group is root's, or one that many systems make for each user, with that user alone in it."""
    if gid == 0:
        return True
    try:
        import grp
        import pwd

        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
