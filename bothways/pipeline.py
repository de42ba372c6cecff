"""The one road from a call to a program, read top to bottom.

    1. capture        a function and its arguments -> Capture: graph, guards, the text of a program    capture/
    2. differentiate  the captured graph           -> forward and backward graphs, joined by a node    grad/
    3. lower          each of these                -> kernels and ATen calls                           lower/
    4. program        text and compiled graph      -> a Program that the dispatcher takes              runtime/

Each stage is a plain call. Stages write down what they do in the record of the compilation (``record/``), which is all
that explanations and logs read. A backward is differentiated and lowered when it first runs, by stages 2 and 3, and
adds to the same record. Whether a call comes here, and what becomes of it when the road ends early, is decided in
``driver/``.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import errors, torch_compat
from bothways.backends.aot import Lowering, differentiated
from bothways.backends.registry import Backend, call_backend, failures_of
from bothways.capture.capture import Capture, capture
from bothways.config import config
from bothways.errors import Break, Position, Unsupported
from bothways.record import generated
from bothways.record.compilation import Compilation
from bothways.record.counters import counters
from bothways.record.graphs import captured_graph
from bothways.record.outcomes import Outcome
from bothways.runtime.listening import listening
from bothways.runtime.logs import capture_in_progress
from bothways.runtime.size_history import SizeHistory


@dataclass(frozen=True)
class Options:
    """How one function is compiled; ``compile`` validates them."""

    backend: Backend
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    forced: bool = False  # whether the backend is one that a stance has put in place of the function's own
    cuda_graphs: bool | None = None  # whether the mode wants them or not, in the place of the configuration
    of_hooks: bool = False  # whether the function calls hooks: the code that runs the backward decides, too


@dataclass(frozen=True)
class MissedCall:
    """A call that no program takes: what its parameters are bound to, and what earlier calls have taught."""

    function: types.FunctionType
    arguments: Mapping[str, object]
    options: Options
    tag: str  # part of the names of its program, so that no two programs of a function share one
    sizes: SizeHistory | None = None
    disbelieved: Collection[Position] = ()  # where operations failed on fakes, and plain Python came through
    turned: Collection[Position] = ()  # loops that train, of which each turn is a program
    waits: bool = False  # whether what is done once in a life runs plainly, and the next call is captured
    left: Collection[Position] = ()  # lines whose calls are plain Python's


class Verdict(enum.Enum):
    """What the driver has to say of a capture."""

    COMPILE = "compile its graph"
    ONCE = "run its graph as captured: the program is for this call alone"
    AS_IT_IS = "keep the program, which only says when the function raises"
    REFUSE = "make no program"


def compile_call(call: MissedCall, record: Compilation, judge: Callable[[Capture], Verdict]) -> Capture | None:
    """Compile one call; the program of what comes back is ready to run. None where ``judge`` refuses.

    Raises ``Unsupported`` for what cannot be captured, ``BackendFailed`` for what a backend raises.
    """
    with generated.recording(record):
        captured = capture_call(call)  # 1
        verdict = judge(captured)
        if verdict is Verdict.REFUSE:
            return None
        if verdict is Verdict.AS_IT_IS:
            return captured
        run = None
        if captured.graph is not None:
            record.outcome = Outcome(record.function, call.options.backend_name, captured.program.op_count)
            with torch_compat.without_function_modes():  # no mode of the caller's sees what a backend does
                if verdict is Verdict.COMPILE:
                    run = compile_graph(captured.graph, captured.inputs, call.options.backend)  # 2 and 3
                    record.graph = captured.graph
                    record.graphs.insert(0, captured_graph(captured.graph))
                else:
                    run = captured.graph.forward
        finish_program(captured, run, record)  # 4
    return captured


def capture_call(call: MissedCall) -> Capture:
    """Stage 1: look at the call. What goes wrong inside is told apart from what is not supported."""
    counters["frames"]["total"] += 1
    with generated.stage("capture"), capture_in_progress():
        try:
            return capture(
                call.function,
                call.arguments,
                depth_limit=config.inline_depth_limit,
                tag=call.tag,
                fullgraph=call.options.fullgraph,
                sizes=call.sizes,
                disbelieved=call.disbelieved,
                turned=call.turned,
                waits=call.waits,
                left=call.left,
            )
        except (Unsupported, errors.KernelWarning):  # the user may want warnings to be errors
            raise
        except RecursionError:
            raise Unsupported(Break("too_deep", "the capture ran out of stack")) from None
        except Exception as error:
            raise _internal(call.function, error) from error


def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any], backend: Backend) -> Callable[..., Any]:
    """Stages 2 and 3: a function that does what a captured graph does. A backend of the user's does both in its way."""
    if not isinstance(backend, Lowering):
        with generated.stage("backend"):
            return call_backend(backend, graph, inputs)
    with failures_of(backend), listening():
        # It lowers the forward at once, and each backward when that first runs.
        return differentiated(graph, list(inputs), backend)


def finish_program(captured: Capture, run: Callable[..., Any] | None, record: Compilation) -> None:
    """Stage 4: the program calls the compiled graph, and assumes what the stages before had to assume about sizes."""
    program = captured.program
    with generated.stage("program"):
        program.name += record.function.removeprefix(record.name)
        if run is not None:
            program.namespace[captured.graph_key] = run
            with torch_compat.without_function_modes():
                program.checks += captured.late_checks()
    counters["frames"]["ok"] += 1
    if record.graph is not None:
        counters["stats"]["unique_graphs"] += 1
        counters["stats"]["calls_captured"] += program.op_count


def _internal(function: types.FunctionType, error: Exception) -> Exception:
    if config.suppress_errors:
        return Unsupported(Break("internal", f"{type(error).__name__}: {error}"))
    return errors.InternalError(
        f"bothways failed while capturing {function.__qualname__}: {type(error).__name__}: {error}. "
        "This is a bug; config.suppress_errors = True runs the function as plain Python instead."
    )
