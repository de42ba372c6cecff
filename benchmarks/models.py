"""First step, every step and peak memory of small models: eager, torch.compile and bothways, with default backends.

Every figure comes from a process of its own with the compilers' disk caches off; "warm" is a second process that
finds the disk cache of a first one. A step is forward and backward. Rows run engine after engine, in rounds, and the
fastest counts: the machine may be shared. First steps include what a compiler imports when it is first used.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import print_table, print_targets, write_results
from torch.autograd.profiler import profile
from workloads import WORKLOADS

ENGINES = ("eager", "torch.compile", "bothways")


def prepare_with(engine: str) -> Callable[[Any], Any]:
    if engine == "torch.compile":
        return lambda target: torch.compile(target)
    if engine == "bothways":
        import bothways

        return lambda target: bothways.compile(target, fullgraph=True)
    return lambda target: target


def measure(row: str, engine: str) -> dict[str, float]:
    """What one process finds."""
    torch.manual_seed(0)
    prepare = prepare_with(engine)
    (torch.ones(2, requires_grad=True) * 2).backward(torch.ones(2))  # wake up PyTorch itself: this imports, too
    work = WORKLOADS[row](prepare)
    gc.collect()  # looking through what the imports have left takes 90 ms, and belongs to no step
    started = time.perf_counter()
    work.step()
    first = time.perf_counter() - started
    for _ in range(5):
        work.step()
    best, spent, repeats = float("inf"), 0.0, 1
    while spent < 1.5:
        started = time.perf_counter()
        for _ in range(repeats):
            work.step()
        took = time.perf_counter() - started
        spent += took
        best = min(best, took / repeats)
        repeats = max(1, min(1000, int(0.02 / best)))
    return {"first_s": first, "step_ms": best * 1e3, "peak_mb": peak(work.step) / 1e6}


def peak(step: Callable[[], Any]) -> int:
    """Bytes of tensors at the most, beyond those held before the step."""
    with profile(profile_memory=True) as recorded:
        step()
    held = most = 0
    for event in sorted(recorded.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def run(row: str, engine: str, cache: Path | None = None) -> dict[str, float]:
    """Measure in a process of its own; with ``cache``, a folder whose content it finds and leaves."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
            BOTHWAYS_CACHE_DIR=str(cache or f"{folder}/bothways"),
        )
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode beside them
        command = [sys.executable, __file__, "--row", row, "--engine", engine]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{row} with {engine} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def best_of(results: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(result[name] for result in results) for name in results[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=WORKLOADS, action="append")
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.engine:
        print(json.dumps(measure(arguments.row[0], arguments.engine)))
        return
    results: dict[str, dict[str, Any]] = {}
    for row in arguments.row or WORKLOADS:
        rounds = [{engine: run(row, engine) for engine in ENGINES} for _ in range(arguments.rounds)]
        results[row] = {engine: best_of([each[engine] for each in rounds]) for engine in ENGINES}
        with tempfile.TemporaryDirectory() as folder:
            run(row, "bothways", Path(folder))
            results[row]["warm_first_s"] = run(row, "bothways", Path(folder))["first_s"]
        print(f"measured {row}", file=sys.stderr)
    report(results)
    write_results("models", {"rows": results})


def report(results: dict[str, dict[str, Any]]) -> None:
    header = ["", "first s", "torch", "share", "warm s", "step ms", "torch", "eager", "of torch", "of eager"]
    header += ["peak MB", "eager"]
    rows = []
    for row, found in results.items():
        ours, theirs, eager = found["bothways"], found["torch.compile"], found["eager"]
        rows.append(
            [
                row, ours["first_s"], theirs["first_s"], ours["first_s"] / theirs["first_s"], found["warm_first_s"],
                ours["step_ms"], theirs["step_ms"], eager["step_ms"], ours["step_ms"] / theirs["step_ms"],
                ours["step_ms"] / eager["step_ms"], ours["peak_mb"], eager["peak_mb"],
            ]
        )  # fmt: skip
    print_table("bothways next to torch.compile and eager (forward and backward)", header, rows)
    print_targets(
        {
            "first step at most a fifth of torch.compile's on every row": all(row[3] <= 0.2 for row in rows),
            "step time at most torch.compile's on every row": all(row[8] <= 1 for row in rows),
            "step time at most eager's on every row": all(row[9] <= 1 for row in rows),
            "pointwise chain at least twice as fast as torch.compile": all(
                row[8] <= 0.5 for row in rows if row[0] == "pointwise chain"
            ),
            "first step with a warm disk cache at most a fifth of a cold one": all(
                row[4] <= 0.2 * row[1] for row in rows
            ),
        }
    )


if __name__ == "__main__":
    main()
