"""What a call of a compiled function costs beyond the work itself: guards, dispatch, unpacking.

Small tensors, so that the work takes a microsecond or two; eager, torch.compile and bothways take turns, so
that a slow moment of the machine hits all three. Times are per call. Of a module, "eager" is its arithmetic alone,
without the calls of its submodules, which no compiled program makes. "bothways native" runs kernels instead of the
graph as captured: what is left of "eager" then is what fusing saves.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from common import ENGINES, Function, check_captured, print_table, print_targets, warm_up, write_results
from torch import Tensor

import bothways
from bothways.testing import difference


def add_two(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def mix_ten(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    e: Tensor,
    f: Tensor,
    g: Tensor,
    h: Tensor,
    i: Tensor,
    j: Tensor,
) -> Tensor:
    return a * b + c * d + e * f + g * h + i * j


def read_config(x: Tensor, config: dict[str, Any]) -> Tensor:
    scale = config["scale"] * config["gain"] + config["offset"] - config["floor"] + config["ceiling"]
    width = config["layers"] * config["heads"] + config["width"] - config["depth"] + config["padding"]
    if config["training"] and not config["frozen"] and config["residual"]:
        x = x * scale
    if config["activation"] == "relu" and config["norm"] != "none" and config["dtype"] == "float32":
        x = torch.relu(x)
    if config["bias"] or config["causal"]:
        x = x + width
    rate = config["dropout"] + config["epsilon"]
    return x - rate


CONFIG: dict[str, Any] = {
    "scale": 2.0, "gain": 0.5, "offset": 1.0, "floor": 0.1, "ceiling": 0.2,
    "layers": 4, "heads": 8, "width": 16, "depth": 2, "padding": 1,
    "training": True, "frozen": False, "residual": True, "bias": True, "causal": False,
    "activation": "relu", "norm": "layer", "dtype": "float32",
    "dropout": 0.0, "epsilon": 1e-5,
}  # fmt: skip

class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = (torch.nn.Parameter(torch.randn(4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.weight) * self.scale + self.bias


class Tower(torch.nn.Module):
    """300 parameters in 100 submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Scaled() for _ in range(100)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def arithmetic_of(tower: Tower) -> Function:
    """What the tower computes, written out."""
    names = [f"p{index}" for index in range(300)]
    lines = [f"    x = (x + p{index}) * p{index + 2} + p{index + 1}" for index in range(0, 300, 3)]
    namespace: dict[str, Any] = dict(zip(names, tower.parameters(), strict=True))
    exec("\n".join(["def arithmetic(x):", *lines, "    return x"]), namespace)
    function: Function = namespace["arithmetic"]
    return function


@dataclass(frozen=True)
class Case:
    """A function, its arguments, what eager is instead of it, and which share of torch.compile's extra is aimed at."""

    function: Any
    args: tuple[Any, ...]
    eager: Function | None = None
    share: float = 0.25
    fewer: int = 1  # how many times fewer calls are made


TOWER = Tower().requires_grad_(False)
CASES: dict[str, Case] = {
    "add of two tensors": Case(add_two, (torch.randn(4), torch.randn(4))),
    "ten tensors": Case(mix_ten, tuple(torch.randn(4) for _ in range(10))),
    "dict of 20 config values": Case(read_config, (torch.randn(4), CONFIG)),
    "module of 100 submodules": Case(TOWER, (torch.randn(4),), arithmetic_of(TOWER), share=0.5, fewer=50),
}


def time_calls(function: Function, args: tuple[Any, ...], calls: int) -> float:
    """Microseconds per call."""
    turns = range(calls)
    start = time.perf_counter()
    for _ in turns:
        function(*args)
    return (time.perf_counter() - start) / calls * 1e6


def measure(case: Case, repetitions: int, calls: int) -> dict[str, list[float]]:
    """Times of every engine, one per repetition, taken in turns."""
    function, args = case.function, case.args
    prepared = {name: prepare(function) for name, prepare in ENGINES.items()}
    prepared["bothways native"] = bothways.compile(function, backend="native", fullgraph=True)
    if case.eager is not None:
        prepared["eager"] = case.eager
    expected = function(*args)
    check_captured(function, args)
    for name, candidate in prepared.items():
        found = difference(expected, candidate(*args))
        if found is not None:
            raise SystemExit(f"{name} gives another result for {function}: {found}")
        time_calls(candidate, args, calls)
    times: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(repetitions):
        for name, candidate in prepared.items():
            times[name].append(time_calls(candidate, args, calls))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000, help="calls per repetition")
    options = parser.parse_args()

    torch.set_num_threads(1)
    warm_up()
    rows: list[list[object]] = []
    results: dict[str, Any] = {}
    for case, measured in CASES.items():
        print(f"measuring {case} ...", flush=True)
        times = measure(measured, options.repetitions, options.calls // measured.fewer)
        best = {name: min(values) for name, values in times.items()}
        # The extra is taken from the best times: noise only ever adds.
        extra = {name: best[name] - best["eager"] for name in times}
        for name, values in times.items():
            share = "" if name == "eager" else extra[name] / extra["torch.compile"]
            rows.append(
                [
                    case if name == "eager" else "",
                    name,
                    best[name],
                    statistics.median(values),
                    extra[name],
                    share,
                ]
            )
        results[case] = {
            "best_us": best,
            "median_us": {name: statistics.median(values) for name, values in times.items()},
            "extra_us": extra,
            "extra_of_torch_compile": extra["bothways"] / extra["torch.compile"],
        }

    header = ["function", "engine", "best us", "median us", "over eager us", "of torch.compile's extra"]
    print_table("time per call", header, rows)
    first = next(iter(results))
    targets = {f"{first}: at most 3 us over eager": results[first]["extra_us"]["bothways"] <= 3}
    for case, result in results.items():
        share = CASES[case].share
        targets[f"{case}: at most {share} of torch.compile's extra"] = result["extra_of_torch_compile"] <= share
    print_targets(targets)
    write_results("overhead", {"cases": results, "targets": targets})


if __name__ == "__main__":
    main()
