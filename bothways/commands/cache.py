"""``python -m bothways cache info | clear``: looks after the folder that keeps built kernels for the next process."""

from __future__ import annotations

import sys

from bothways.cache.disk import Cache
from bothways.cache.disk import directory as cache_directory


def look_after_cache(arguments: list[str]) -> int:
    """``cache info`` and ``cache clear``."""
    cache = Cache(cache_directory())
    match arguments:
        case ["info"]:
            print(cache.info())
        case ["clear"]:
            print(f"removed {cache.clear()} entries from {cache.root}")
        case _:
            print("usage: python -m bothways cache info | clear", file=sys.stderr)
            return 2
    return 0
