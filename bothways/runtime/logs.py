"""What is printed as it happens, by topic (``config.logs`` or ``BOTHWAYS_LOGS``), and whether this thread captures."""

from __future__ import annotations

import logging
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

from bothways.config import config
from bothways.errors import BackendFailed, Break
from bothways.runtime.program import Program
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


def _say(topic: str, message: str) -> None:
    if not config.wants_log(topic):
        return
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[bothways] %(message)s"))
        logger.addHandler(handler)
    logger.warning("%s: %s", topic, writable(message))


def recompiling(function: types.FunctionType, reason: str) -> None:
    _say("recompiles", f"{function.__qualname__} is compiled again because this no longer holds: {reason}")


def broke(function: types.FunctionType, found: Break) -> None:
    _say("breaks", f"{function.__qualname__}\n{found}")


def outcome(function: str, what: object) -> None:
    _say("outcomes", f"{function}: {what}")


def ran_plainly_after(failure: Exception) -> None:
    """A graph raised where plain Python then did not: user code caught the error, or a backend is at fault."""
    if isinstance(failure, BackendFailed):
        raise failure
    _say("breaks", f"a graph raised {type(failure).__name__}: {failure}; the call ran as plain Python without an error")


def program_added(function: types.FunctionType, program: Program) -> None:
    if config.wants_log("guards"):
        _say("guards", "\n".join([function.__qualname__, *(f"  {check.text}" for check in program.checks)]))
    if config.wants_log("programs"):
        _say("programs", f"{function.__qualname__}\n{program.source}")
    if config.wants_log("graphs") and program.graph_text is not None:
        _say("graphs", f"{function.__qualname__}\n{program.graph_text()}")
