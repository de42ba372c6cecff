"""What ``optimizer.step()`` costs: every optimizer of ``torch.optim`` by eager, one parameter after the other, with
foreach and fused, next to bothways with its native backend.

The ways are measured side by side in one process on one thread: CPU time, the best of many repetitions. Parameters
are compared with eager's afterwards. Prints a table and writes JSON; ``--quick`` measures one size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from common import print_table, print_targets, write_results
from torch import optim

import bothways

Make = Callable[..., optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda parameters, **how: optim.SGD(parameters, lr=0.01, **how),
    "SGD momentum": lambda parameters, **how: optim.SGD(parameters, lr=0.01, momentum=0.9, **how),
    "SGD nesterov": lambda parameters, **how: optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True, **how),
    "Adam": optim.Adam,
    "Adam amsgrad": lambda parameters, **how: optim.Adam(parameters, amsgrad=True, **how),
    "AdamW": optim.AdamW,
    "RAdam": optim.RAdam,
    "NAdam": optim.NAdam,
    "Adamax": optim.Adamax,
    "Adagrad": optim.Adagrad,
    "Adadelta": optim.Adadelta,
    "RMSprop": optim.RMSprop,
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
    "Adafactor": optim.Adafactor,
}
FUSED = ("SGD", "SGD momentum", "SGD nesterov", "Adam", "Adam amsgrad", "AdamW", "Adagrad")
# It has one way, and most of it are matrix products in bfloat16.
MATRICES: dict[str, Make] = {"Muon": optim.Muon} if hasattr(optim, "Muon") else {}
SIZES = ((10, 100), (10, 1000), (40, 1000), (40, 20000), (200, 100), (200, 1000))


def parameters(count: int, elements: int, matrices: bool) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = []
    for _ in range(count):
        values = torch.randn(elements // 10, 10) if matrices else torch.randn(elements)
        made.append(torch.nn.Parameter(values))
        made[-1].grad = torch.randn_like(values)
    return made


def steps_of(name: str, count: int, elements: int) -> dict[str, tuple[optim.Optimizer, Callable[[], Any]]]:
    """Way -> an optimizer, and what makes its step that way."""
    make = {**OPTIMIZERS, **MATRICES}[name]
    options: dict[str, dict[str, bool]] = {"loop": {}}
    if name not in MATRICES:
        options = {"loop": {"foreach": False}, "foreach": {"foreach": True}}
    if name in FUSED:
        options["fused"] = {"fused": True}
    found = {}
    for way, how in options.items():
        optimizer = make(parameters(count, elements, name in MATRICES), **how)
        found[way] = (optimizer, optimizer.step)
    ours = make(parameters(count, elements, name in MATRICES))

    def step() -> None:
        ours.step()

    found["bothways"] = (ours, bothways.compile(step))
    return found


def measure(name: str, count: int, elements: int, repetitions: int) -> dict[str, Any]:
    ways = steps_of(name, count, elements)
    started = time.perf_counter()
    for _ in range(2):  # the first makes the state
        ways["bothways"][1]()
    first = time.perf_counter() - started
    for way, (_, step) in ways.items():
        for _ in range(3 if way == "bothways" else 5):
            step()
    difference = _difference(ways["loop"][0], ways["bothways"][0])
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repetitions):
        for way, (_, step) in ways.items():
            started = time.process_time()
            step()
            best[way] = min(best[way], time.process_time() - started)
    microseconds = {way: seconds * 1e6 for way, seconds in best.items()}
    eager = microseconds.get("foreach", microseconds["loop"])
    captures = len(bothways.history(ways["bothways"][1]))
    return {
        "optimizer": name, "parameters": count, "elements": elements, "microseconds": microseconds, "first_s": first,
        "ratio": microseconds["bothways"] / eager, "difference": difference, "captures": captures,
    }  # fmt: skip


def _difference(one: optim.Optimizer, other: optim.Optimizer) -> float:
    pairs = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    return max(float((left - right).detach().abs().max()) for left, right in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 parameters of 1,000 elements only")
    parser.add_argument("--only", help="the optimizers with this in their names")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = ((40, 1000),) if options.quick else SIZES
    names = [name for name in (*OPTIMIZERS, *MATRICES) if (options.only or "").lower() in name.lower()]
    measured = []
    for count, elements in sizes:
        repetitions = 100 if count * elements < 100_000 else 30
        found = [measure(name, count, elements, repetitions) for name in names]
        rows = [
            [one["optimizer"], *(one["microseconds"].get(way, "") for way in ("loop", "foreach", "fused", "bothways")),
             one["ratio"], one["first_s"], f"{one['difference']:.0e}"]
            for one in found
        ]  # fmt: skip
        header = "optimizer,loop us,foreach us,fused us,bothways us,of foreach,first steps s,off by".split(",")
        print_table(f"{count} parameters of {elements} elements", header, rows)
        measured += found
    held = [one for one in measured if one["optimizer"] not in MATRICES]
    targets = {
        "at most half of eager's foreach time": all(one["ratio"] <= 0.5 for one in held),
        "no second program": all(one["captures"] <= 2 for one in measured),
        "parameters as eager's, to 1e-5": all(one["difference"] <= 1e-5 for one in held),
    }
    print_targets(targets)
    write_results("optimizers", {"measured": measured, "targets": targets})


if __name__ == "__main__":
    main()
