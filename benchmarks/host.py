"""What the host does in a replayed training step, without a GPU: a graph is recorded, and its replay does nothing.

zero_grad, forward, backward, clipping and a fused AdamW, of a model of small parameters. Times are the shortest of
many calls, in microseconds; the parts are measured in calls of their own. Beside it stands the same step on a CPU,
kernels and all, without replays.

    python benchmarks/host.py --parameters 51 --parameters 300
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import print_table, print_targets, write_results
from torch import nn

import bothways
from bothways.grad.nodes.changed import Versions
from bothways.replay.outputs import Outputs
from bothways.replay.recorders import recording_with
from bothways.replay.recording import Recording
from bothways.replay.replayed import Replayed
from bothways.replay.starting import Starting

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import fake_graphs

TARGET = 60.0  # microseconds, for 300 parameters

# Names in programs, and methods, whose calls are measured.
NAMES = ("_table_", "_forget_gradients", "_keep_inputs", "_call_together", "_spent", "_set_gradients")
METHODS: tuple[tuple[type, str], ...] = (
    (Replayed, "at_once"), (Replayed, "call"), (Recording, "replay"), (Starting, "again"), (Outputs, "hand_out"),
    (Versions, "set"),
)  # fmt: skip


class DoesNothing(fake_graphs.FakeRecorded):
    """A recording whose replay leaves all memory as it is."""

    def replay(self) -> None:
        pass

    def done(self, lent: Any) -> None:
        pass


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = (nn.Parameter(torch.randn(4)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.weight) * self.scale + self.bias


def step_of(parameters: int) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Scaled() for _ in range(parameters // 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def shortest(call: Callable[[], Any], calls: int) -> float:
    best = float("inf")
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best * 1e6


def measured_parts(compiled: Any, calls: int) -> dict[str, float]:
    """The shortest time of each part; those of methods are within that of the graph."""
    best: dict[str, float] = defaultdict(lambda: float("inf"))

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                best[name] = min(best[name], (time.perf_counter() - begin) * 1e6)

        return run

    names = compiled.__globals__
    before = {name: names[name] for name in names if name.startswith(NAMES)}
    methods = [(cls, name, getattr(cls, name)) for cls, name in METHODS]
    for name, function in before.items():
        label = next(one for one in NAMES if name.startswith(one)).strip("_")
        names[name] = timed(label, function) if callable(function) else function
    for cls, name, method in methods:
        setattr(cls, name, timed(f"  {cls.__name__}.{name}", method))
    try:
        shortest(compiled, calls)
    finally:
        names.update(before)
        for cls, name, method in methods:
            setattr(cls, name, method)
    return dict(best)


def measure(parameters: int, calls: int) -> dict[str, Any]:
    with bothways.config.patch(cuda_graphs=True), recording_with("cpu", fake_graphs.FakeGraphs()):
        compiled: Any = bothways.compile(step_of(parameters), backend="native")
        for _ in range(10):
            compiled()
        replays = [one for compilation in bothways.history(compiled) for one in compilation.replays]
        if not any(one.calls for one in replays):
            raise SystemExit(f"nothing was replayed: {[one.reasons for one in replays]}")
        whole = shortest(compiled, calls)
        parts = measured_parts(compiled, calls)
    with bothways.config.patch(cuda_graphs=False):
        launched: Any = bothways.compile(step_of(parameters), backend="native")
        for _ in range(5):
            launched()
        plain = shortest(launched, calls)
    return {"replayed_us": whole, "kernels_us": plain, "parts_us": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, action="append", help="51 and 300, unless some are named")
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fake_graphs.FakeRecorded = DoesNothing
    results = {str(count): measure(count, options.calls) for count in options.parameters or (51, 300)}
    labels = dict.fromkeys(label for found in results.values() for label in found["parts_us"])
    rows: list[list[object]] = [["whole step, replayed", *(found["replayed_us"] for found in results.values())]]
    rows += [[label, *(found["parts_us"].get(label, "-") for found in results.values())] for label in labels]
    rows.append(["the same with kernels on a CPU", *(found["kernels_us"] for found in results.values())])
    print_table("the host's part of a step, us", ["", *(f"{count} parameters" for count in results)], rows)
    targets = {}
    if "300" in results:
        targets[f"under {TARGET:.0f} us for 300 parameters"] = results["300"]["replayed_us"] < TARGET
        print_targets(targets)
    write_results("host", {"steps": results, "targets": targets})


if __name__ == "__main__":
    main()
