"""Whether another tracer sees the operations of a call: a compiled function runs as plain Python there.

Programs have guards against every such tracer; what is here is asked after a miss.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from bothways import errors, torch_compat


@dataclass(frozen=True)
class Tracing:
    """Who traces, as people know it, and whether that is bothways itself."""

    name: str
    is_own: bool = False


def who_traces() -> Tracing | None:
    """Who sees the operations that run now; None when no tracer does."""
    if torch_compat.is_jit_tracing():
        return Tracing("torch.jit.trace")
    if torch_compat.dispatch_mode_depth():
        mode = torch_compat.innermost_dispatch_mode()
        return Tracing(f"the dispatch mode {type(mode).__name__}", isinstance(mode, torch_compat.DispatchMode))
    if torch_compat.functorch_level():
        return Tracing("a function transform (vmap, grad, jvp, ...)")
    if torch_compat.is_fx_symbolic_tracing():
        return Tracing("torch.fx.symbolic_trace")
    return None


def say_traced(name: str, tracing: Tracing) -> None:
    """Tell people at their line that a call of theirs ran plainly for that."""
    warnings.warn(
        f"the compiled function {name} was called while {tracing.name} is active, so it runs as plain Python there; "
        "other calls run compiled.",
        errors.TracedWarning,
        stacklevel=errors.level_of_user(),
    )
