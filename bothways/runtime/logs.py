"""What is printed as it happens, by topic (``config.logs`` or ``BOTHWAYS_LOGS``), and whether this thread captures."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bothways.config import config
from bothways.errors import BackendFailed
from bothways.source_text import writable

logger = logging.getLogger("bothways")
_thread = threading.local()


def capturing() -> bool:
    """Whether this thread is inside a capture, where compiled functions run as plain Python."""
    return getattr(_thread, "capturing", False)


@contextmanager
def capture_in_progress() -> Iterator[None]:
    before = capturing()
    _thread.capturing = True
    try:
        yield
    finally:
        _thread.capturing = before


def stack_left() -> int:
    """How many more calls Python allows, about; asked on a miss, as it takes as long as the stack is deep."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return sys.getrecursionlimit() - depth


def say(topic: str, message: str) -> None:
    """Print a message for those who asked for its topic."""
    if not config.wants_log(topic):
        return
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[bothways] %(message)s"))
        logger.addHandler(handler)
    logger.warning("%s: %s", topic, writable(message))


def ran_plainly_after(failure: Exception) -> None:
    """A graph raised where plain Python then did not: user code caught the error, or a backend is at fault."""
    if isinstance(failure, BackendFailed):
        raise failure
    say("breaks", f"a graph raised {type(failure).__name__}: {failure}; the call ran as plain Python without an error")
