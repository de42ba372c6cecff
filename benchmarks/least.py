"""How much of a plain training step stays when it is compiled: what lies outside of what is compiled (data, loss,
optimizer), and the products of matrices and convolutions inside, which are ATen's either way.

A step cannot take less than that share of the plain one, however fast guards, kernels and nodes are. Where others use
the machine, the fastest of some rounds counts for each step, and for each product in it: a profiler's clock goes on
while a process waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile
from training import Training

# What ATen computes in a plain step and in a compiled one. A transposed convolution has no event of its own.
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in "mm addmm bmm baddbmm mv dot mkldnn_convolution _convolution convolution_backward mkldnn_rnn_layer "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward".split()
)
STEPS = 11  # as many as a round of benchmarks/programs.py
ROUNDS = 8


class Inside:
    """Counts the time that a process spends in some functions, those that they call among themselves once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._since = 0.0

    def begin(self, *_: Any) -> None:
        if not self._depth:
            self._since = time.thread_time()
        self._depth += 1

    def end(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.thread_time() - self._since

    def counted(self, target: Any) -> Any:
        """A module or a function whose calls are counted."""
        if isinstance(target, torch.nn.Module):
            target.register_forward_pre_hook(self.begin)
            target.register_forward_hook(self.end, always_call=True)
            return target

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin()
            try:
                return target(*args, **kwargs)
            finally:
                self.end()

        return call


def least_of(build: Callable[[Callable[[Any], Any]], Training], step_ms: float) -> float:
    """The share of a plain step, which takes so long, that stays. ``build`` is given what counts and makes a script."""
    inside = Inside()
    program = build(inside.counted)
    backward, gradients = torch.Tensor.backward, torch.autograd.grad
    torch.Tensor.backward, torch.autograd.grad = map(inside.counted, (backward, gradients))  # type: ignore[misc]
    outside: dict[int, float] = {}
    products: dict[int, list[float]] = {}
    try:
        for _ in range(ROUNDS):
            for n in range(STEPS):
                inside.seconds, started = 0.0, time.thread_time()
                program.step(n)
                took = time.thread_time() - started - inside.seconds
                outside[n] = min(outside.get(n, took), took)
                with profile() as recorded:
                    program.step(n)
                found = [event.self_cpu_time_total for event in recorded.function_events if event.name in PRODUCTS]
                products[n] = _fastest(products.get(n, found), found)
    finally:
        torch.Tensor.backward, torch.autograd.grad = backward, gradients  # type: ignore[method-assign]
    stays = sum(outside.values()) + sum(map(sum, products.values())) / 1e6
    return stays / STEPS * 1e3 / step_ms


def _fastest(known: list[float], found: list[float]) -> list[float]:
    """One by one where there are as many; how many there are may be for data to say."""
    return list(map(min, known, found)) if len(known) == len(found) else min(known, found, key=sum)
