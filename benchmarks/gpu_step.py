"""Whole training steps on a GPU: zero_grad, forward, loss, backward, clipping, fused AdamW, in ms.

Beside eager, torch.compile and its reduce-overhead stands what experts do by hand: the model compiled, and the step
captured in one CUDA graph. bothways compiles the step by one decorator. Prints as it goes and writes JSON.

    python benchmarks/gpu_step.py --engine eager --engine bothways --row 'GPT tiny'
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import print_table, print_targets
from gpu_common import Results, Step, collected, forget, measured_steps, prepare, require_gpu, run_rows
from gpu_models import GPT_SMALL, GPT_TINY, RESNET_18, Made, blocks
from torch import nn

ROWS: dict[str, Callable[[], Made]] = {
    "GPT tiny, batch 2 x 512": GPT_TINY,
    "GPT-2 small, batch 8 x 512": GPT_SMALL,
    "6 x (Linear 1024, LayerNorm, GELU)": lambda: blocks(6, 1024),
    "ResNet-18, 64 x 64, batch 32, tf32": RESNET_18,
}


def step_of(model: nn.Module, run: Callable[..., Any], data: tuple[Any, ...], capturable: bool = False) -> Step:
    """One step with a fused AdamW, as people write it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=capturable)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = run(*data)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def eager(model: nn.Module, data: tuple[Any, ...]) -> Step:
    return step_of(model, model, data)


def compiled(model: nn.Module, data: tuple[Any, ...]) -> Step:
    return step_of(model, torch.compile(model), data)


def reduce_overhead(model: nn.Module, data: tuple[Any, ...]) -> Step:
    return step_of(model, torch.compile(model, mode="reduce-overhead"), data)


def by_hand(model: nn.Module, data: tuple[Any, ...]) -> Step:
    """The step of a compiled model, captured when it is first called and replayed from then on."""
    step = step_of(model, torch.compile(model), data, capturable=True)
    graph: torch.cuda.CUDAGraph | None = None

    def replayed() -> None:
        nonlocal graph
        if graph is not None:
            graph.replay()
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

    return replayed


def bothways_step(model: nn.Module, data: tuple[Any, ...]) -> Step:
    import bothways

    compiled: Step = bothways.compile(step_of(model, model, data), backend="native")
    return compiled


def bothways_launched(model: nn.Module, data: tuple[Any, ...]) -> Step:
    """The same without CUDA graphs."""
    import bothways

    bothways.config.cuda_graphs = False
    return bothways_step(model, data)


ENGINES: dict[str, Callable[[nn.Module, tuple[Any, ...]], Step]] = {
    "eager": eager,
    "torch.compile": compiled,
    "reduce-overhead": reduce_overhead,
    "by hand": by_hand,
    "bothways": bothways_step,
    "bothways, launched": bothways_launched,
}


def child(engine: str, rows: list[str]) -> None:
    prepare()
    make = ENGINES[engine]
    make(nn.Linear(4, 1).cuda(), (torch.ones(1, 4, device="cuda"),))()
    forget()
    run_rows(rows, lambda row: measured_steps(make(*ROWS[row]())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, action="append", help="all, unless some are named")
    parser.add_argument("--row", action="append", help="rows whose names contain this; all unless some are named")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.row)
        return
    require_gpu()
    rows = [row for row in ROWS if not arguments.row or any(part in row for part in arguments.row)]
    engines = arguments.engine or list(ENGINES)
    results = collected(__file__, engines, rows, "gpu_step")
    report(results, engines)


def report(results: Results, engines: list[str]) -> None:
    header = ["", *(f"{engine} {unit}" for engine in engines for unit in ("ms", "first s"))]
    rows = [
        [row, *(found.get(engine, {}).get(key, "-") for engine in engines for key in ("ms", "first_s"))]
        for row, found in results.items()
    ]
    print_table("a whole training step on the GPU", header, rows)
    pairs = [
        (found["bothways"], found["by hand"])
        for found in results.values()
        if all("ms" in found.get(engine, {}) for engine in ("bothways", "by hand"))
    ]
    if pairs:
        print_targets(
            {
                "at most what is captured by hand, on every row": all(ours["ms"] <= hand["ms"] for ours, hand in pairs),
                "first step under 4 s": all(ours["first_s"] < 4 for ours, _ in pairs),
            }
        )


if __name__ == "__main__":
    main()
