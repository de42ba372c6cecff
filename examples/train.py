"""Train a small model plainly, with torch.compile and with bothways, and compare: losses, times, breaks.

The model has what training code has: a custom autograd.Function, a tensor hook that counts and changes the gradient,
and an optimizer. bothways compiles the whole step, from ``zero_grad`` to the update, and the table says how many graphs
that takes. torch.compile is given the parts, and where it does not work, the table says that.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import bothways

LEVELS = 32


class Quantize(torch.autograd.Function):
    """Round to a grid of values; the gradient passes as if nothing had happened, where it was not clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.round(x.clamp(-1, 1) * LEVELS) / LEVELS

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


def fourier_features(x: Tensor, octaves: int) -> Tensor:
    """Each coordinate as sines and cosines of rising frequency."""
    parts = [x]
    for octave in range(octaves):
        parts += [torch.sin(x * 2**octave), torch.cos(x * 2**octave)]
    return torch.cat(parts, dim=-1)


def smooth_loss(prediction: Tensor, target: Tensor, beta: float) -> Tensor:
    """Squared error near zero, absolute error beyond ``beta``."""
    error = (prediction - target).abs()
    return torch.where(error < beta, 0.5 * error**2 / beta, error - 0.5 * beta).mean()


class Encoder(nn.Module):
    """Two residual blocks over the features."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


class Head(nn.Module):
    """Quantizes the code, watches and damps its gradient, and predicts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.leave = nn.Linear(width, 1)
        self.gradient_norms: list[Tensor] = []

    def forward(self, code: Tensor) -> Tensor:
        code = Quantize.apply(code)
        if code.requires_grad:
            code.register_hook(self.watch)
        return self.leave(code)

    def watch(self, grad: Tensor) -> Tensor:
        self.gradient_norms.append(grad.detach().norm())
        return grad * 0.9


@dataclass
class Training:
    """Everything one run needs; the functions are replaced by compiled ones for the compiled runs."""

    features: Callable[..., Tensor]
    encoder: Callable[..., Tensor]
    head: Callable[..., Tensor]
    loss: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    gradient_norms: list[Tensor]


def build() -> Training:
    torch.manual_seed(0)
    encoder, head = Encoder(inputs=2 + 2 * 2 * 4, width=64), Head(width=64)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-2)
    return Training(fourier_features, encoder, head, smooth_loss, optimizer, head.gradient_norms)


def training_step(training: Training, x: Tensor, y: Tensor) -> Tensor:
    training.optimizer.zero_grad()
    code = training.encoder(training.features(x, 4))
    loss = training.loss(training.head(code), y, 0.1)
    loss.backward()
    training.optimizer.step()
    return loss.detach()


def compiled(training: Training, compile: Callable[..., Any]) -> Training:
    """The same run with every part compiled."""
    parts = (training.features, training.encoder, training.head, training.loss)
    return Training(*map(compile, parts), training.optimizer, training.gradient_norms)


@dataclass
class Run:
    """One way to train, and what it saw; ``failure`` says why it stopped, if it did."""

    name: str
    training: Training
    step: Callable[..., Tensor]
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: str = ""

    def take(self, x: Tensor, y: Tensor) -> None:
        start = time.perf_counter()
        self.losses.append(self.step(self.training, x, y).item())
        self.seconds.append(time.perf_counter() - start)


class PeerRun(Run):
    """A run with torch.compile, which does not work with every Python and needs a C++ compiler."""

    def take(self, x: Tensor, y: Tensor) -> None:
        if self.failure:
            return
        logging.disable(logging.WARNING)  # what it says of this program is for those who tune it
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                super().take(x, y)
        except Exception as error:
            self.failure = said(error)
        finally:
            logging.disable(logging.NOTSET)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:100]


def peer_run() -> Run:
    try:
        # Its parts alone: with the whole step, its optimizer and its hook, the first step takes a minute.
        return PeerRun("torch.compile", compiled(build(), torch.compile), training_step)
    except Exception as error:  # of a Python that it does not support
        return PeerRun("torch.compile", build(), training_step, failure=said(error))


def train(runs: list[Run], batches: list[tuple[Tensor, Tensor]]) -> None:
    """The runs take turns, so that whatever else the machine does burdens them alike."""
    for number, (x, y) in enumerate(batches, start=1):
        for run in runs:
            run.take(x, y)
        if number == 1 or number % (len(batches) // 5) == 0:
            losses = "   ".join(f"{run.name} loss {run.losses[-1]:.5f}" for run in runs if not run.failure)
            print(f"  step {number:>4} of {len(batches)}   {losses}", flush=True)


def make_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    points = [torch.rand(128, 2) * 2 - 1 for _ in range(count)]
    return [(x, torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])) for x in points]


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Rows under a header; a row that is shorter than the header ends in a remark of any length."""
    whole = [row for row in [header, *rows] if len(row) > 2]
    widths = [max(len(row[column]) for row in whole if column < len(row)) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


COMPARED = 20


def agree(plain: Sequence[float], ours: Sequence[float]) -> bool:
    """Whether two runs saw the same numbers. Kernels add in another order, and training makes much of the last digits,
    so it is the first steps that are compared."""
    return len(plain) == len(ours) and all(
        math.isclose(one, other, rel_tol=1e-3) for one, other in zip(plain[:COMPARED], ours[:COMPARED], strict=True)
    )


def row_of(run: Run, plain: Run) -> list[str]:
    """What the table says of a run."""
    if run.failure:
        return [run.name, f"does not work here ({run.failure})"]
    later = statistics.median(run.seconds[1:]) * 1e3
    row = [run.name, f"{run.seconds[0]:.2f} s", f"{later:.2f} ms", f"{run.losses[-1]:.6f}"]
    if run is plain:
        return row
    gap = max(abs(a - b) for a, b in zip(plain.losses[:COMPARED], run.losses[:COMPARED], strict=True))
    equal = "yes" if agree(plain.losses, run.losses) else "NO"
    norms = [[norm.item() for norm in each.training.gradient_norms] for each in (plain, run)]
    hooks = "yes" if agree(*norms) else "NO"
    return [*row, f"{equal} (gap {gap:.1e})", hooks]


def report(plain: Run, peer: Run, ours: Run, explanation: Any) -> None:
    print("\nThe runs")
    header = ["run", "first step", "time per step", "last loss", "losses agree", "hook saw the same"]
    print_table(header, [row_of(run, plain) for run in (plain, peer, ours)])

    print("\nWhat the training step has become")
    made = explanation.programs[-1]
    whole = all(one.of_first_call for one in explanation.breaks)  # the first step makes the optimizer's state
    pieces = "one graph" if whole else "several graphs, the last"
    print(f"  forward, loss, backward, hook and optimizer: {pieces} of {made.op_count} operations")
    for outcome in explanation.outcomes:
        print(f"  {outcome}")
    for one in explanation.breaks:
        print(f"  a call ran as plain Python at {one.where}: [{one.code}] {one.reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are small; more threads only add noise
    batches = make_batches(max(options.steps, 5))

    print("Training plainly, with torch.compile and with bothways")
    training_step(build(), *batches[0])  # PyTorch's own first-use costs should burden no run
    plain = Run("plain", build(), training_step)
    whole_step = bothways.compile(training_step)  # forward, loss, backward, hook and update
    ours = Run("bothways, whole step", build(), whole_step)
    peer = peer_run()
    train([plain, ours, peer], batches)
    explanation = bothways.explain(whole_step)
    report(plain, peer, ours, explanation)

    print("\nHow the generated program ends: the graph is called, and its results are put where eager puts them")
    print("\n".join("  | " + line for line in explanation.programs[-1].source.splitlines()[-24:]))
    if not agree(plain.losses, ours.losses):
        raise SystemExit("the compiled run differs from the plain one")


if __name__ == "__main__":
    main()
