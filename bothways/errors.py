"""Every exception bothways raises, and the structure a break carries.

A ``Break`` says what stopped a capture, where in the user's source, and what can be done about it; its
text is made here and nowhere else.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from bothways.source_text import printable


@dataclass(frozen=True)
class Position:
    """One place in the user's source: a file, a line, and the function it stands in."""

    filename: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The source line itself, or an empty string when no source can be found."""
        try:
            return linecache.getline(self.filename, self.line).strip()
        except ValueError:  # no file can have this name
            return ""

    def __str__(self) -> str:
        return f"{printable(self.filename)}:{self.line} in {printable(self.function)}"


UNKNOWN_POSITION = Position("<unknown>", 0, "<unknown>")

# Reason code -> what the user can do about it. The codes are stable: people filter logs by them.
HINTS: dict[str, str] = {
    "call_unknown": (
        "Call it outside the compiled function, or mark it with bothways.allow_in_graph if it only does tensor work."
    ),
    "debugger": "A person may look at the frame from here on, so the rest of it is plain Python; remove the call.",
    "call_disabled": "The callee is marked with bothways.disable; move the call out of the compiled function.",
    "graph_break": "Remove the bothways.graph_break() call.",
    "tensor_branch": (
        "Decide with torch.where, or compute the condition from shapes and Python values instead of tensor data."
    ),
    "tensor_value": "Keep the value a tensor; reading it as a Python number needs the data, which capture has not.",
    "dynamic_shape": "The result's shape depends on data; use a masked operation with a fixed shape instead.",
    "attribute_unknown": "Read the attribute outside the compiled function and pass it in.",
    "operator_unknown": "Do this operation outside the compiled function.",
    "opcode_unknown": "Move this statement out of the compiled function.",
    "class_definition": "Define the class at module level.",
    "import": "Import at module level.",
    "generator_escapes": "Consume the generator inside the function, or return a list.",
    "async": "Compile the synchronous parts; coroutines run as plain Python.",
    "autograd_function": "Keep side effects out of forward, and give apply tensors and constants only.",
    "object_in_graph": "Change the object outside the compiled function, or give apply its parts instead.",
    "hook": "Register the hook outside the compiled function; there it runs as plain Python.",
    "backward": "Call backward() outside the compiled function for now.",
    "lazy_module": "The module finds out its sizes in this call, as plain Python; the next call is captured.",
    "lazy_state": "The optimizer makes its state in this step, as plain Python; the next step is captured.",
    "op_unknown": (
        "If the operation is your own, tell PyTorch what it returns (torch.library.register_fake); or call it outside."
    ),
    "op_failed": "The operation raised while its shapes were worked out; run the function uncompiled to see the error.",
    "tensor_subclass": "Pass a plain torch.Tensor or nn.Parameter.",
    "builtin_replaced": "Put the function back before calling the compiled function, or do that part outside.",
    "torch_mode": "Leave the mode or the transform before calling the compiled function, or do that part outside.",
    "mutation_unknown": "Mutate the object outside the compiled function.",
    "object_unknown": "Pass the parts of the object that are needed instead of the object.",
    "hash_unknown": "Use keys and set elements that are numbers, strings or tuples of them.",
    "context_manager": "Enter the context manager outside the compiled function.",
    "too_long": "Do long loops of plain Python outside the compiled function.",
    "too_deep": "The call chain is deeper than config.inline_depth_limit; raise it or make the recursion shallower.",
    "exception_escapes": "The function raises; it runs as plain Python so that the exception is the user's own.",
    "escape": "The object cannot be rebuilt after the graph ran; return its parts instead.",
    "loop_state": "Break before or after the comprehension; or write it as a loop.",
    "value_changes": "Make the text outside the compiled function; what is another one at each call is no constant.",
    "unstable_guard": "What the guard reads gives another answer each time; read it outside the compiled function.",
    "internal": "This is a bug in bothways; the function was run as plain Python.",
}


@dataclass(frozen=True)
class Break:
    """Where a capture stopped: a reason code, what happened, the source position, and what to do."""

    code: str
    reason: str
    where: Position = UNKNOWN_POSITION
    stack: tuple[Position, ...] = field(default=())

    @property
    def hint(self) -> str:
        return HINTS[self.code]

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.reason}", f"  at {self.where}"]
        if self.where.text:
            lines.append(f"    {self.where.text}")
        lines += [f"  called from {position}" for position in self.stack]
        lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class BothwaysError(Exception):
    """The base of everything bothways raises on its own account."""


class Unsupported(BothwaysError):
    """Capture met something it cannot do; ``break_`` says what, where and what to do."""

    def __init__(self, break_: Break) -> None:
        super().__init__(str(break_))
        self.break_ = break_

    def __reduce__(self) -> tuple[type[Unsupported], tuple[Break]]:
        return type(self), (self.break_,)


class InvalidBackend(BothwaysError, ValueError):
    """A backend name nobody registered, or a backend that is no callable."""

    def __init__(self, name: object, valid: Sequence[str]) -> None:
        super().__init__(f"no backend {name!r}; the valid names are {', '.join(valid)} (or pass a callable)")
        self.name, self.valid = name, tuple(valid)

    def __reduce__(self) -> tuple[type[InvalidBackend], tuple[object, tuple[str, ...]]]:
        return type(self), (self.name, self.valid)


class InvalidOption(BothwaysError, ValueError):
    """A keyword of the public API with a value it does not take."""


class InvalidTarget(BothwaysError, TypeError):
    """Something that cannot be compiled was passed to ``compile``."""


class BackendFailed(BothwaysError, RuntimeError):
    """A backend raised, or returned something that cannot be called."""


class NoCompiler(BothwaysError, RuntimeError):
    """There is no C compiler that works, so there are no kernels."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}\n  hint: install gcc or clang (Debian: apt install gcc libc6-dev), or set CC to a compiler; "
            'backend="aot_eager" works without one'
        )
        self.problem = problem

    def __reduce__(self) -> tuple[type[NoCompiler], tuple[str]]:
        return type(self), (self.problem,)


class BuildFailed(BothwaysError, RuntimeError):
    """The C compiler works, but not on a source that was generated; the message has what it said."""


class RecompileError(BothwaysError, RuntimeError):
    """A guard failed while ``config.error_on_recompile`` was set."""


class InternalError(BothwaysError, RuntimeError):
    """bothways itself went wrong; the message asks for a report."""


class TracedWarning(UserWarning):
    """A compiled function was called while somebody else traces, and ran as plain Python for that."""


class RecompileLimitWarning(UserWarning):
    """A function runs as plain Python from now on: it met ``config.recompile_limit`` programs, or its captures came to
    nothing for longer than ``config.wasted_capture_ratio`` allows."""


class KernelWarning(UserWarning):
    """Kernels cannot be built, or not be kept on disk; what runs instead is right, and slower."""


# Where the frames of bothways are from: its files, and what it generates.
OWN_CODE = (os.path.dirname(__file__) + os.sep, "<bothways ")


def level_of_user() -> int:
    """The ``stacklevel`` with which a warning of the caller's names the user's line, not one that leads to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_CODE):
        level, frame = level + 1, frame.f_back
    return level


@functools.cache
def warn_once(message: str) -> None:
    """Give a KernelWarning, the first time for each message."""
    warnings.warn(message, KernelWarning, stacklevel=level_of_user())
