"""What the benchmarks share: the three ways to run a function, a plain-text table, a file of results.

Results are written below ``benchmarks/results`` with the versions they were measured with.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import bothways
from bothways.testing import CompileCounter

RESULTS = Path(__file__).parent / "results"

Function = Callable[..., Any]

# Name -> how a function is prepared to be run that way. Both compilers run the graph as captured.
ENGINES: dict[str, Callable[[Function], Function]] = {
    "eager": lambda function: function,
    "torch.compile": lambda function: torch.compile(function, backend="eager", fullgraph=True),
    "bothways": lambda function: bothways.compile(function, backend="eager", fullgraph=True),
}


def warm_up() -> None:
    """Compile a trivial function with every engine, so that no measurement pays for imports."""
    x = torch.ones(4)
    for prepare in ENGINES.values():
        # A function of its own for each engine: what one compiler knows of it cannot help the other.
        prepare(eval("lambda x: x + 1"))(x)


def check_captured(function: Function, args: tuple[Any, ...]) -> None:
    """Stop unless bothways captures ``function`` once and whole: plain Python must not pass as compiled."""
    counter = CompileCounter()
    compiled = bothways.compile(function, backend=counter, fullgraph=True)
    compiled(*args)
    compiled(*args)
    if counter.frame_count != 1:
        raise SystemExit(f"{function.__name__} was captured {counter.frame_count} times instead of once")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under a header, words to the left and numbers to the right."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    columns = range(len(header))
    widths = [max(len(row[column]) for row in cells) for column in columns]
    numeric = [any(isinstance(row[column], float) for row in rows) for column in columns]
    cells.insert(1, ["-" * width for width in widths])
    print(f"\n{title}")
    for row in cells:
        line = [row[at].rjust(widths[at]) if numeric[at] else row[at].ljust(widths[at]) for at in columns]
        print("  " + "  ".join(line).rstrip())


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def print_targets(targets: dict[str, bool]) -> None:
    """What was promised, and whether it was kept."""
    print("\ntargets")
    for text, met in targets.items():
        print(f"  {'met    ' if met else 'NOT met'}  {text}")


def write_results(name: str, results: dict[str, Any]) -> None:
    """Write ``results`` as JSON, with what they depend on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    path.write_text(json.dumps({"environment": environment, **results}, indent=2) + "\n")
    print(f"\nwritten to {path.relative_to(RESULTS.parent.parent)}")
