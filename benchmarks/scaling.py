"""How first-call time grows with a model: the GPT of benchmarks/workloads.py with 2, 4, 8 and 16 layers.

Each size runs in a process of its own without a disk cache. Prints a table, writes JSON, and draws the growth as text
and as a PNG (the PNG needs matplotlib: ``pip install 'bothways[bench]'``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from common import RESULTS, print_table, print_targets, write_results
from models import prepare_with
from workloads import gpt

LAYERS = (2, 4, 8, 16)
ENGINES = ("torch.compile", "bothways")


def measure(layers: int, engine: str) -> float:
    torch.manual_seed(0)
    (torch.ones(2, requires_grad=True) * 2).sum().backward()
    work = gpt(prepare_with(engine), layers)
    started = time.perf_counter()
    work.step()
    return time.perf_counter() - started


def run(layers: int, engine: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
            BOTHWAYS_CACHE_DIR=f"{folder}/bothways",
        )
        command = [sys.executable, __file__, "--layers", str(layers), "--engine", engine]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{layers} layers with {engine} failed:\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--alone", action="store_true", help="without torch.compile, which takes minutes")
    arguments = parser.parse_args()
    if arguments.engine:
        print(json.dumps(measure(arguments.layers, arguments.engine)))
        return
    engines = ENGINES[1:] if arguments.alone else ENGINES
    seconds = {engine: {layers: run(layers, engine) for layers in LAYERS} for engine in engines}
    print_table(
        "seconds of the first step", ["layers", *engines], [[str(n), *(seconds[e][n] for e in engines)] for n in LAYERS]
    )
    draw_text(seconds)
    draw_png(seconds)
    ours = seconds["bothways"]
    growth = (ours[16] - ours[8]) / 8 / ((ours[8] - ours[2]) / 6)
    print_targets(
        {
            "twice the layers take at most twice the time": all(ours[2 * n] <= 2 * ours[n] for n in LAYERS[:-1]),
            f"a layer costs no more late than early (cost late / early: {growth:.2f})": growth <= 1.2,
        }
    )
    write_results("scaling", {"seconds": {e: {str(n): s for n, s in by.items()} for e, by in seconds.items()}})


def draw_text(seconds: dict[str, dict[int, float]], width: int = 60) -> None:
    print()
    for engine, by_layers in seconds.items():
        most = max(by_layers.values())
        for layers, taken in by_layers.items():
            print(f"  {engine:14} {layers:3} layers {'#' * round(width * taken / most)} {taken:.2f} s")


def draw_png(seconds: dict[str, dict[int, float]]) -> None:
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        print("\nno PNG: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    plot: Any = importlib.import_module("matplotlib.pyplot")
    for engine, by_layers in seconds.items():
        plot.plot(list(by_layers), list(by_layers.values()), marker="o", label=engine)
    plot.xlabel("layers")
    plot.ylabel("seconds of the first step")
    plot.ylim(bottom=0)
    plot.legend()
    RESULTS.mkdir(exist_ok=True)
    plot.savefig(RESULTS / "scaling.png", dpi=120)
    print(f"\ndrawn in {(RESULTS / 'scaling.png').relative_to(RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
