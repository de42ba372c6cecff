"""How long the first call takes: capture, guards, program, for functions of 100 to 5,000 tensor operations.

Imports are not counted: every compiler has compiled a trivial function before. The functions are straight
Python, written to measure how the time grows with length; each measurement gets a function of its own.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from itertools import count, pairwise
from typing import Any

import torch
from common import ENGINES, Function, check_captured, print_table, print_targets, warm_up, write_results

import bothways
from bothways.testing import difference

# One statement is one tensor operation. After the last one a and b have the shapes they had before the first,
# and values stay bounded however often the list is repeated.
STATEMENTS = [
    "a = a + b",
    "b = torch.sin(a)",
    "a = a * 0.5",
    "a = torch.relu(a)",
    "b = b - a",
    "a = torch.cat([a, b], dim=1)",
    "a = a.reshape(16, 8)",
    "a = a[:8]",
    "b = b.tanh()",
    "a = a.clamp(-1.0, 1.0)",
]

_serial = count()


def build(operations: int) -> Function:
    """A function of that many tensor operations, new at every call."""
    lines = ["def straight(a, b):"]
    lines += [f"    {STATEMENTS[index % len(STATEMENTS)]}" for index in range(operations)]
    lines += ["    return a, b"]
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines), f"<straight {next(_serial)}>", "exec"), namespace)
    function: Function = namespace["straight"]
    return function


def time_first_call(engine: str, operations: int) -> float:
    """Seconds from the call of ``compile`` to the result of the first call."""
    args = (torch.randn(8, 8), torch.randn(8, 8))
    function = build(operations)
    expected = function(*args)
    torch.compiler.reset()
    bothways.reset()
    gc.collect()
    start = time.perf_counter()
    actual = ENGINES[engine](function)(*args)
    seconds = time.perf_counter() - start
    found = difference(expected, actual)
    if found is not None:
        raise SystemExit(f"{engine} gives another result for {operations} operations: {found}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()

    torch.set_num_threads(1)
    warm_up()
    check_captured(build(min(options.sizes)), (torch.randn(8, 8), torch.randn(8, 8)))
    times: dict[int, dict[str, list[float]]] = {}
    for size in options.sizes:
        print(f"measuring {size} operations ...", flush=True)
        times[size] = {name: [] for name in ENGINES}
        for _ in range(options.repetitions):
            for name in ENGINES:
                times[size][name].append(time_first_call(name, size))

    best = {size: {name: min(values) for name, values in by_name.items()} for size, by_name in times.items()}
    rows: list[list[object]] = []
    for size, by_name in times.items():
        for name, values in by_name.items():
            share = "" if name == "eager" else best[size][name] / best[size]["torch.compile"]
            milliseconds = best[size][name] * 1e3
            first = str(size) if name == "eager" else ""
            rows.append(
                [first, name, milliseconds, statistics.median(values) * 1e3, milliseconds * 1e3 / size, share]
            )
    header = ["operations", "engine", "best ms", "median ms", "us per operation", "of torch.compile"]
    print_table("first call", header, rows)

    sizes = sorted(best)
    growth = [
        [f"{small} to {large}", large / small, *[best[large][name] / best[small][name] for name in ENGINES]]
        for small, large in pairwise(sizes)
    ]
    print_table("growth (linear would be the size's own)", ["operations", "size", *ENGINES], growth)

    targets = {
        f"{size} operations: at most a third of torch.compile": best[size]["bothways"]
        <= best[size]["torch.compile"] / 3
        for size in sizes
    }
    for small, large in pairwise(sizes):
        # A tenth of slack: two measurements of one thing differ by that much on a shared machine.
        linear = best[large]["bothways"] <= 1.1 * best[small]["bothways"] * large / small
        targets[f"{small} to {large} operations: grows no worse than linearly"] = linear
    print_targets(targets)
    seconds = {str(size): times[size] for size in sizes}
    write_results("capture", {"first_call_s": seconds, "targets": targets})


if __name__ == "__main__":
    main()
