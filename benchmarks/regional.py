"""A model compiled block by block and whole: the first step and every step, next to torch.compile and eager.

People compile the blocks of a deep model one by one so that the first step costs what one block costs. The model is
the GPT of benchmarks/workloads.py with 24 layers; "one block" is the same with one. Every figure comes from a process
of its own without a disk cache; "warm" is a second process that finds the cache of a first one. A step is forward and
backward, and the fastest of the rounds counts: the machine may be shared.
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
from pathlib import Path
from typing import Any

import torch
from common import print_table, print_targets, write_results
from models import ENGINES, best_of, prepare_with
from workloads import Gpt

LAYERS = 24
BATCH, LENGTH = 2, 64
# Way -> how many layers, and what of the model is compiled.
WAYS = {"one block": (1, "blocks"), "block by block": (LAYERS, "blocks"), "whole": (LAYERS, "model")}


def measure(way: str, engine: str) -> dict[str, float]:
    """What one process finds."""
    layers, compiled = WAYS[way]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    prepare = prepare_with(engine)
    (torch.ones(2, requires_grad=True) * 2).backward(torch.ones(2))  # wake up PyTorch itself: this imports, too
    model = Gpt(layers, length=LENGTH)
    if compiled == "blocks":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = prepare(block)
    run = prepare(model) if compiled == "model" else model
    tokens = torch.randint(0, 256, (BATCH, LENGTH))
    targets = tokens.roll(-1, 1)

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        run(tokens, targets).backward()

    gc.collect()
    started = time.perf_counter()
    step()
    first = time.perf_counter() - started
    for _ in range(3):
        step()
    best = float("inf")
    for _ in range(30):
        started = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - started)
    return {"first_s": first, "step_ms": best * 1e3, "captures": float(captures(model, run, engine))}


def captures(model: Gpt, run: Any, engine: str) -> int:
    """How often bothways has looked at something."""
    if engine != "bothways":
        return 0
    import bothways

    compiled = [run] if run is not model else list(model.blocks)
    return len({record.number for one in compiled for record in bothways.history(one)})


def run(way: str, engine: str, cache: Path | None = None) -> dict[str, float]:
    """Measure in a process of its own; with ``cache``, a folder whose content it finds and leaves."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
            BOTHWAYS_CACHE_DIR=str(cache or f"{folder}/bothways"),
        )
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, __file__, "--way", way, "--engine", engine]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} with {engine} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without torch.compile, which takes minutes")
    arguments = parser.parse_args()
    if arguments.engine:
        print(json.dumps(measure(arguments.way, arguments.engine)))
        return
    engines = [engine for engine in ENGINES if engine != "torch.compile" or not arguments.alone]
    rounds = [{way: {engine: run(way, engine) for engine in engines} for way in WAYS} for _ in range(arguments.rounds)]
    results: dict[str, dict[str, Any]] = {
        way: {engine: best_of([each[way][engine] for each in rounds]) for engine in engines} for way in WAYS
    }
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            run(way, "bothways", Path(folder))
            results[way]["warm_first_s"] = run(way, "bothways", Path(folder))["first_s"]
    report(results)
    write_results("regional", {"layers": LAYERS, "ways": results})


def report(results: dict[str, dict[str, Any]]) -> None:
    header = ["", "first s", "torch", "eager", "warm s", "step ms", "torch", "eager", "captures"]
    rows: list[list[Any]] = []
    for way, found in results.items():
        ours, theirs, eager = found["bothways"], found.get("torch.compile"), found["eager"]
        rows.append(
            [
                way, ours["first_s"], theirs["first_s"] if theirs else "", eager["first_s"], found["warm_first_s"],
                ours["step_ms"], theirs["step_ms"] if theirs else "", eager["step_ms"], str(int(ours["captures"])),
            ]
        )  # fmt: skip
    print_table(f"{LAYERS} layers compiled block by block, and whole (forward and backward)", header, rows)
    one, blocks, whole = (results[way]["bothways"] for way in WAYS)
    steps = (blocks["step_ms"] - one["step_ms"]) / 1e3  # what the other layers compute, compiled or not
    print_targets(
        {
            f"first step block by block at most 1.3 times that of one block ({blocks['first_s'] / one['first_s']:.2f})":
                blocks["first_s"] <= 1.3 * one["first_s"],
            f"the same without what the other layers compute ({(blocks['first_s'] - steps) / one['first_s']:.2f})":
                blocks["first_s"] - steps <= 1.3 * one["first_s"],
            "one capture for all blocks": blocks["captures"] == 1,
            "step time at most eager's": all(
                results[way]["bothways"]["step_ms"] <= results[way]["eager"]["step_ms"] for way in WAYS
            ),
            "step time of the whole model at most that of its blocks": whole["step_ms"] <= blocks["step_ms"],
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
