"""What a call of a compiled function costs beyond the work itself: guards, dispatch, unpacking.

Small tensors, so that the work takes a microsecond or two; eager, torch.compile and bothways take turns, so
that a slow moment of the machine hits all three. Times are per call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from common import ENGINES, Function, check_captured, print_table, print_targets, warm_up, write_results
from torch import Tensor

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

CASES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "add of two tensors": (add_two, (torch.randn(4), torch.randn(4))),
    "ten tensors": (mix_ten, tuple(torch.randn(4) for _ in range(10))),
    "dict of 20 config values": (read_config, (torch.randn(4), CONFIG)),
}


def time_calls(function: Function, args: tuple[Any, ...], calls: int) -> float:
    """Microseconds per call."""
    turns = range(calls)
    start = time.perf_counter()
    for _ in turns:
        function(*args)
    return (time.perf_counter() - start) / calls * 1e6


def measure(
    function: Function, args: tuple[Any, ...], repetitions: int, calls: int
) -> dict[str, list[float]]:
    """Times of every engine, one per repetition, taken in turns."""
    prepared = {name: prepare(function) for name, prepare in ENGINES.items()}
    expected = function(*args)
    check_captured(function, args)
    for name, candidate in prepared.items():
        found = difference(expected, candidate(*args))
        if found is not None:
            raise SystemExit(f"{name} gives another result for {function.__name__}: {found}")
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
    for case, (function, args) in CASES.items():
        print(f"measuring {case} ...", flush=True)
        times = measure(function, args, options.repetitions, options.calls)
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
        targets[f"{case}: at most a quarter of torch.compile's extra"] = (
            result["extra_of_torch_compile"] <= 0.25
        )
    print_targets(targets)
    write_results("overhead", {"cases": results, "targets": targets})


if __name__ == "__main__":
    main()
