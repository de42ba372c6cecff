"""How much memory a training step takes at its peak, and how long the first one takes: a 12-layer transformer.

Memory is what PyTorch's profiler saw allocated and freed on the CPU during one step after the first few, added up
in order: bytes of tensors, the same in every run, where the resident size of the process depends on what the C
library gives back and on what compilers left behind. Parameters and inputs are not counted, gradients are. Each way
to run has a process of its own, which runs the model plainly and compiles a small one first: what is timed is neither
imports nor PyTorch waking up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import print_table, print_targets, write_results
from torch import Tensor, nn
from torch.autograd.profiler import profile, record_function
from workloads import Gpt

import bothways

VOCABULARY = 100

ENGINES: dict[str, Callable[[nn.Module], Callable[..., Tensor]]] = {
    "eager": lambda model: model,
    "torch.compile": lambda model: torch.compile(model, backend="aot_eager", fullgraph=True),
    "bothways": lambda model: bothways.compile(model, backend="aot_eager", fullgraph=True),
    "bothways, saving all": lambda model: bothways.compile(model, backend="aot_eager", fullgraph=True),
}


def step(run: Callable[..., Tensor], model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Forward and backward, with gradients that start at None."""
    model.zero_grad()
    loss = run(*data)
    with record_function("backward"):
        loss.backward()
    return loss.item()


def memory(run: Callable[..., Tensor], model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[int, int]:
    """The bytes held between forward and backward, and at the peak, beyond those held before the step."""
    model.zero_grad()
    with profile(use_cpu=True, profile_memory=True) as profiler:
        step(run, model, data)
    events = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
    held = held_between = peak = 0
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
        elif event.name() == "backward":
            held_between = held
    return held_between, peak


def measure(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run here: what one engine needs for one step."""
    torch.set_num_threads(options.threads)
    bothways.config.recompute = engine != "bothways, saving all"
    prepare = ENGINES[engine]
    small = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    prepare(small)(torch.ones(2, 3)).sum().backward()

    torch.manual_seed(0)
    model = Gpt(options.layers, options.width, VOCABULARY, options.length)
    shape = (2, options.batch, options.length)
    tokens, targets = torch.randint(0, VOCABULARY, shape)
    step(model, model, (tokens, targets))
    run = prepare(model)
    times = []
    for _ in range(1 + options.repetitions):
        start = time.perf_counter()
        loss = step(run, model, (tokens, targets))
        times.append(time.perf_counter() - start)
    held, peak = memory(run, model, (tokens, targets))
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return {
        "first_s": times[0], "step_s": min(times[1:]), "held_mb": held / 1e6, "peak_mb": peak / 1e6,
        "loss": loss, "gradient": gradients.double().norm().item(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", choices=ENGINES, help="measure this one in this process and print JSON")
    options = parser.parse_args()
    if options.engine is not None:
        print(json.dumps(measure(options.engine, options)))
        return

    results: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        print(f"measuring {engine} ...", flush=True)
        command = [sys.executable, *sys.argv, "--engine", engine]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        results[engine] = json.loads(found.stdout.splitlines()[-1])
        for value in ("loss", "gradient"):
            if abs(results[engine][value] - results["eager"][value]) > 1e-5 * abs(results["eager"][value]):
                raise SystemExit(f"{engine} gives another {value} than eager")

    eager, peer, ours = results["eager"], results["torch.compile"], results["bothways"]
    rows = [
        [name, found["held_mb"], found["peak_mb"], found["peak_mb"] / eager["peak_mb"],
         found["first_s"], found["step_s"]]
        for name, found in results.items()
    ]  # fmt: skip
    header = ["engine", "held after forward MB", "peak MB", "of eager's", "first step s", "step s"]
    print_table("memory and time of a training step", header, rows)
    targets = {
        "peak at most eager's": ours["peak_mb"] <= eager["peak_mb"],
        "peak at most torch.compile's": ours["peak_mb"] <= peer["peak_mb"],
        "first step at most half of torch.compile's": ours["first_s"] <= peer["first_s"] / 2,
    }
    print_targets(targets)
    write_results("memory", {"engines": results, "targets": targets})


if __name__ == "__main__":
    main()
