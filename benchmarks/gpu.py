"""Models, small functions and memory-bound operations on a GPU: eager, torch.compile, its reduce-overhead, bothways.

Each engine runs in a process of its own. A model's step is forward and backward of a compiled module, with the
backward outside. ``--bandwidth`` measures the operations that only move memory: the time of their kernels alone, as
bytes that have to be moved over it, next to a copy. Prints as it goes and writes JSON, and a PNG with matplotlib.

    python benchmarks/gpu.py --engine eager --engine bothways --row 'GPT tiny'
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from common import RESULTS, print_table, print_targets
from gpu_common import (
    Results,
    collected,
    device_time,
    forget,
    measured_steps,
    milliseconds,
    prepare,
    require_gpu,
    run_rows,
)
from gpu_models import GPT_SMALL, GPT_TINY, RESNET_50, Made, blocks
from torch import Tensor

Compile = Callable[[Any], Any]


def _bothways(target: Any) -> Any:
    import bothways

    return bothways.compile(target, backend="native")


ENGINES: dict[str, Compile] = {
    "eager": lambda target: target,
    "torch.compile": lambda target: torch.compile(target),
    "reduce-overhead": lambda target: torch.compile(target, mode="reduce-overhead"),
    "bothways": _bothways,
}


# Models and functions: a step, compiled by an engine.


def _model(make: Callable[[], Made]) -> Callable[[Compile], dict[str, Any]]:
    def measure(compile: Compile) -> dict[str, Any]:
        model, data = make()
        compiled = compile(model)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            compiled(*data).backward()

        return measured_steps(step)

    return measure


def _twenty(x: Tensor) -> Tensor:
    for _ in range(5):
        x = torch.sigmoid(x * 1.1 + 0.3) - x.tanh()
    return x


def _pointwise(compile: Compile) -> dict[str, Any]:
    x, compiled = torch.randn(4096, 4096, device="cuda"), compile(_twenty)
    with torch.no_grad():
        return measured_steps(lambda: compiled(x))


def _small(compile: Compile) -> dict[str, Any]:
    """Its ``ms`` is what one call takes the host, when many follow each other."""

    def three(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).relu() * y

    x, y, compiled = torch.randn(16, device="cuda"), torch.randn(16, device="cuda"), compile(three)
    with torch.no_grad():
        return measured_steps(lambda: compiled(x, y))


def _optimizer(**options: bool) -> Callable[[Compile], dict[str, Any]]:
    def measure(compile: Compile) -> dict[str, Any]:
        model, _ = GPT_SMALL()
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, **options)
        return measured_steps(compile(lambda: optimizer.step()))

    return measure


ROWS: dict[str, Callable[[Compile], dict[str, Any]]] = {
    "GPT-2 small, batch 8 x 512": _model(GPT_SMALL),
    "GPT tiny, batch 2 x 512": _model(GPT_TINY),
    "10 x (Linear 4096, LayerNorm, GELU)": _model(lambda: blocks(10, 4096)),
    "ResNet-50, tf32, batch 32": _model(RESNET_50),
    "20 pointwise on 4096 x 4096": _pointwise,
    "3 operations on 16 elements": _small,
    "AdamW foreach, 148 parameters": _optimizer(foreach=True),
    "AdamW fused, 148 parameters": _optimizer(fused=True),
}

# Operations that move memory: a function of x and of small tensors, and how many tensors like x have to be moved in
# forward and backward together.
Operation = tuple[Callable[..., Tensor], Callable[[Tensor], tuple[Tensor, ...]], int]


def _row_weights(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.randn(x.shape[1], device=x.device, dtype=x.dtype).requires_grad_() for _ in range(2))


OPERATIONS: dict[str, Operation] = {
    "20 pointwise": (_twenty, lambda x: (), 5),
    "layer norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), _row_weights, 5),
    "softmax": (lambda x: x.softmax(1), lambda x: (), 5),
    "RMS norm": (lambda x, w: F.rms_norm(x, w.shape, w), lambda x: _row_weights(x)[:1], 5),
    "cross-entropy": (
        lambda x, target: F.cross_entropy(x, target),
        lambda x: (torch.randint(0, x.shape[1], (x.shape[0],), device=x.device),),
        3,
    ),
}
SHAPES, DTYPES = ((4096, 4096), (8192, 1024)), (torch.bfloat16, torch.float32)
CACHE = 4 * 60 << 20  # as many bytes of inputs as no cache holds


def _size_name(shape: tuple[int, int], dtype: torch.dtype) -> str:
    return f"{shape[0]} x {shape[1]} {'bf16' if dtype is torch.bfloat16 else 'f32'}"


def _bandwidth_row(name: str, shape: tuple[int, int], dtype: torch.dtype) -> str:
    return f"{name} {_size_name(shape, dtype)}"


BANDWIDTH = {
    _bandwidth_row(name, shape, dtype): (name, shape, dtype)
    for name in OPERATIONS
    for shape in SHAPES
    for dtype in DTYPES
}


def _bandwidth(compile: Compile, row: str) -> dict[str, Any]:
    """TB/s of forward and backward, inputs that rotate."""
    name, shape, dtype = BANDWIDTH[row]
    function, others, moved = OPERATIONS[name]
    size = shape[0] * shape[1] * dtype.itemsize
    sets = []
    for _ in range(max(2, CACHE // size)):
        x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
        sets.append((x, others(x)))
    compiled, seed = compile(function), torch.randn(shape, device="cuda", dtype=dtype)
    turn = 0

    def step() -> None:
        nonlocal turn
        x, rest = sets[turn % len(sets)]
        turn += 1
        wanted = [x, *(value for value in rest if value.requires_grad)]
        result = compiled(x, *rest)
        torch.autograd.grad(result, wanted, seed if result.dim() else None)

    for _ in range(6):
        step()
    found = device_time(step, count=2 * len(sets))
    return {**found, "tb_s": moved * size / found["device_us"] / 1e6, "ms": milliseconds(step, 0.1)}


def copy_bandwidth() -> dict[str, float]:
    """TB/s of a copy, counting bytes read and written: of 2 GB, and of a tensor of each size above, as they rotate."""
    sizes = {"2 GB": 1 << 31}
    sizes |= {_size_name(shape, dtype): shape[0] * shape[1] * dtype.itemsize for shape in SHAPES for dtype in DTYPES}
    found = {}
    for name, size in sizes.items():
        count = max(2, CACHE // size)
        pairs = [[torch.randn(size // 4, device="cuda") for _ in range(2)] for _ in range(count)]
        time = device_time(lambda: [target.copy_(source) for target, source in pairs], count=5)["device_us"]
        found[name] = 2 * count * size / time / 1e6
    return found


def child(engine: str, rows: list[str]) -> None:
    prepare()
    compile = ENGINES[engine]
    x = torch.ones(4, device="cuda", requires_grad=True)
    compile(eval("lambda x: (x * 2).sin().sum()"))(x).backward()
    forget()
    run_rows(rows, lambda row: ROWS[row](compile) if row in ROWS else _bandwidth(compile, row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, action="append", help="all, unless some are named")
    parser.add_argument("--row", action="append", help="rows whose names contain this; all unless some are named")
    parser.add_argument("--bandwidth", action="store_true", help="what moves memory, in the place of the models")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.row)
        return
    require_gpu()
    table: dict[str, Any] = BANDWIDTH if arguments.bandwidth else ROWS
    rows = [row for row in table if not arguments.row or any(part in row for part in arguments.row)]
    engines = arguments.engine or list(ENGINES)
    copies = copy_bandwidth() if arguments.bandwidth else {}
    name = "gpu_bandwidth" if arguments.bandwidth else "gpu"
    results = collected(__file__, engines, rows, name, copy_tb_s=copies)
    if arguments.bandwidth:
        report_bandwidth(results, engines, copies)
    else:
        report(results, engines)


def report(results: Results, engines: list[str]) -> None:
    header = ["", *(f"{engine} {unit}" for engine in engines for unit in ("ms", "first s", "MB"))]
    keys = ("ms", "first_s", "peak_mb")
    rows = [
        [row, *(found.get(engine, {}).get(key, "-") for engine in engines for key in keys)]
        for row, found in results.items()
    ]
    print_table("a step on the GPU", header, rows)
    pairs = [(row, found["bothways"], found["torch.compile"]) for row, found in results.items() if _both(found)]
    if pairs:
        print_targets(
            {
                "faster than torch.compile on every row": all(ours["ms"] <= theirs["ms"] for _, ours, theirs in pairs),
                "first step at most 3 s, ResNet-50 5 s": all(
                    ours["first_s"] <= (5 if "ResNet" in row else 3) for row, ours, _ in pairs
                ),
                "peak memory at most torch.compile's and 10%": all(
                    ours["peak_mb"] <= 1.1 * theirs["peak_mb"] for _, ours, theirs in pairs
                ),
            }
        )
    _picture(results, engines)


def _both(found: dict[str, Any]) -> bool:
    return all("ms" in found.get(engine, {}) for engine in ("bothways", "torch.compile"))


def report_bandwidth(results: Results, engines: list[str], copies: dict[str, float]) -> None:
    copy_of = {row: copies[_size_name(*BANDWIDTH[row][1:])] for row in results}
    rows = [
        [row, copy_of[row], *(found.get(engine, {}).get(key, "-") for engine in engines for key in ("tb_s", "kernels"))]
        for row, found in results.items()
    ]
    header = ["", "a copy TB/s", *(f"{engine} {unit}" for engine in engines for unit in ("TB/s", "kernels"))]
    print_table(f"forward and backward, TB/s of the kernels alone (a copy of 2 GB: {copies['2 GB']:.2f})", header, rows)
    below = [
        row for row, found in results.items() if found.get("bothways", {}).get("tb_s", 9.0) < 0.85 * copy_of[row]
    ]
    if below:
        print(f"below 85% of a copy of as many bytes: {', '.join(below)}")
    pairs = [(found["bothways"], found["torch.compile"]) for found in results.values() if _both(found)]
    if pairs:
        print_targets(
            {
                "at least 85% of a copy of as many bytes": not below,
                "not below torch.compile": all(ours["tb_s"] >= theirs["tb_s"] for ours, theirs in pairs),
            }
        )


def _picture(results: Results, engines: list[str]) -> None:
    """Bars of each row's time, eager being 1."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        print("\nno PNG: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    plot: Any = importlib.import_module("matplotlib.pyplot")
    rows = [row for row, found in results.items() if "ms" in found.get("eager", {})]
    figure, axes = plot.subplots(figsize=(10, 5))
    for place, engine in enumerate(engines):
        heights = [results[row].get(engine, {}).get("ms", 0) / results[row]["eager"]["ms"] for row in rows]
        axes.bar([at + 0.2 * place for at in range(len(rows))], heights, 0.2, label=engine)
    axes.set_xticks([at + 0.3 for at in range(len(rows))], rows, rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("time of a step, eager = 1")
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "gpu.png", dpi=120)
    print(f"written to {(RESULTS / 'gpu.png').relative_to(RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
