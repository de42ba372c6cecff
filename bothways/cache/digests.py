"""What files hold, as a short text that is the same on every machine that has the same files.

Reading hundreds of files takes a while, so what was read of many is remembered in the cache by their sizes and times,
as Python knows its own files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from bothways.cache.disk import decoded, encoded, key_of, open_cache

DIGEST = "digest"
MANY = 8  # files that take longer to read than an entry of the cache


def digest_of(files: Mapping[str, str]) -> str:
    """One for all of some files; by name, where each is to be found. OSError when one cannot be read."""
    facts = [(name, path, *_stamp(path)) for name, path in sorted(files.items())]
    key = key_of("digest", repr(facts))
    if key not in _known:
        _known[key] = _remembered(key, files)
    return _known[key]


_known: dict[str, str] = {}  # of this process


def _remembered(key: str, files: Mapping[str, str]) -> str:
    cache = open_cache() if len(files) >= MANY else None
    known = None if cache is None else cache.read(key)
    if known is not None and DIGEST in known:
        return decoded(known[DIGEST])
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with open(path, "rb") as file:
            content = file.read()
        digest.update(encoded(f"{name} {len(content)}:") + content)
    if cache is not None:
        cache.keep(key, {DIGEST: digest.hexdigest()})
    return digest.hexdigest()


def _stamp(path: str) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_size, facts.st_mtime_ns
