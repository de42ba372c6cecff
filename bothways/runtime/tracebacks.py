"""Tracebacks without frames of ours between the user's lines.

Python lets a traceback be written anew where an exception is caught, and where it is shown. So a call that misses takes
the frames of its capture out, what is not caught at all is shown without frames of ours, and pytest leaves out frames
whose module says so. ``BOTHWAYS_TRACEBACKS=full`` shows everything; errors about bothways itself keep all their frames.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

from bothways.errors import OWN_CODE, BackendFailed, InternalError

VARIABLE = "BOTHWAYS_TRACEBACKS"
# What pytest asks the globals of a frame for.
HIDDEN = "__tracebackhide__"


def is_full() -> bool:
    try:
        return os.environ.get(VARIABLE, "") == "full"
    except TypeError:  # while builtins that ``os`` uses are patched
        return False


def without_own(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without frames of bothways; the same where there would be nothing left."""
    frames = []
    one = trace
    while one is not None:
        frames.append(one)
        one = one.tb_next
    kept = [frame for frame in frames if not frame.tb_frame.f_code.co_filename.startswith(OWN_CODE)]
    if not kept or len(kept) == len(frames):
        return trace
    shown: types.TracebackType | None = None
    for frame in reversed(kept):
        shown = types.TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown


def cut(error: BaseException) -> BaseException:
    """An exception on its way out of a call that was captured: with the user's frames alone, if it has any."""
    if not is_full() and not isinstance(error, (InternalError, BackendFailed)):
        error.__traceback__ = _only_users(error.__traceback__)
    return error


def _only_users(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Without frames of ours; nothing, where all are ours."""
    kept = without_own(trace)
    is_own = kept is not None and kept.tb_frame.f_code.co_filename.startswith(OWN_CODE)
    return None if is_own else kept


def _cut_all(error: BaseException | None, seen: set[int]) -> None:
    """The same for an exception and those behind it, which are about to be shown."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if not isinstance(error, (InternalError, BackendFailed)):
            error.__traceback__ = without_own(error.__traceback__)
        if error.__cause__ is not None:
            _cut_all(error.__cause__, seen)
        error = error.__context__


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not is_full():
        _cut_all(error, set())
        trace = without_own(trace)
    sys.__excepthook__(kind, error, trace)


def _show_of_thread(args: Any) -> None:
    if not is_full() and args.exc_value is not None:
        _cut_all(args.exc_value, set())
        args = threading.ExceptHookArgs((args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread))
    threading.__excepthook__(args)


def show_users_frames() -> None:
    """Have uncaught exceptions shown without frames of ours, unless another ``sys.excepthook`` shows them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _show_of_thread
