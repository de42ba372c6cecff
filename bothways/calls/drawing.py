"""What a dropout keeps, drawn by C: the truths that ATen would draw next, and its generator where it would be then.

The generator is read before and written afterwards, unless it has moved on meanwhile. How ATen draws depends on the
CPU, and may be another way some day: the C is used only after it gave the same truths as ATen here, from states of
every kind. Otherwise ATen draws.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from bothways.building.build import CSource, library_of
from bothways.calls.call_library import entry
from bothways.calls.drawing_source import DRAWING, WORDS
from bothways.calls.entry_source import NUMBER, POINTER
from bothways.errors import BothwaysError
from bothways.locks import Lock

FEW = 1 << 11  # truths; fewer are drawn by ATen before the generator is read and written
BITS = 53  # of a number that is compared with a probability
HEAD = 24  # bytes of a generator's state before its words of eight bytes, and how many are behind them in all
LEAST = HEAD + 8 * WORDS
# What ATen fills with zeros and ones; of other kinds it says so.
FILLED = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip

_drawing = Lock()
_get_state, _set_state = torch.default_generator.get_state, torch.default_generator.set_state


def filled_with_bernoulli(tensor: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """Zeros and ones in the order in which ``bernoulli_`` draws them for a tensor of this layout."""
    is_usual = generator is None and tensor.is_cpu and tensor.dtype in FILLED
    if is_usual and tensor.numel() >= FEW and _draw() is not None:
        return torch.empty_like(tensor).copy_(draw_truths(torch.empty_like(tensor, dtype=torch.bool), p))
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


filled_with_bernoulli.tags = (torch.Tag.nondeterministic_seeded,)  # type: ignore[attr-defined]


def draw_truths(mask: torch.Tensor, probability: float) -> torch.Tensor:
    """``mask.bernoulli_(probability)``, of a mask of truths on the CPU whose elements fill its memory."""
    count = mask.numel()
    draw = _draw() if count >= FEW and 0 <= probability <= 1 else None
    if draw is None:
        return mask.bernoulli_(probability)
    with _drawing:
        before = _get_state()
        after = torch.empty_like(before)
        draw(before, after, mask, count, _below(probability))
        # Where another thread has drawn, or a finalizer, the numbers are taken. Python's lock is kept from here on.
        if _are_same(before, _get_state()):
            _set_state(after)
            return mask
    return mask.bernoulli_(probability)


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not _memcmp()(one.data_ptr(), other.data_ptr(), one.numel())


@functools.cache
def _memcmp() -> Any:
    """That of C, which is called with Python's lock held."""
    function = ctypes.PyDLL(None)["memcmp"]
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_int
    return function


def _below(probability: float) -> int:
    """Numbers that are below this one, as fractions, are below the probability."""
    return math.ceil(probability * (1 << BITS))


@functools.cache
def _draw() -> Callable[..., Any] | None:
    """The C function, as Python calls it; None where there is none that draws as ATen does."""
    try:
        with torch.inference_mode(False):
            size = int(_get_state().numel())
            if size < LEAST or size % 8:
                return None
            text = f"enum {{ OTHERS = {(size - LEAST) // 8} }};\n{DRAWING}"
            library = library_of(CSource((), (text,)))
            draw = entry(library.address("draw"), POINTER * 3 + NUMBER * 2, library)
            return draw if _draws_as_aten(draw) else None
    except (BothwaysError, OSError, RuntimeError):  # no compiler, or another kind of generator
        return None


def _draws_as_aten(draw: Callable[..., Any]) -> bool:
    """Whether it gives what ATen gives, and leaves the generator where ATen does: fresh ones, ones in the middle of
    their words, at an odd place, and at the end."""
    for skipped, count, probability in ((0, 1000, 0.9), (1, 2001, 0.5), (309, 3, 0.1), (623, 313, 1.0), (1248, 5, 0.0)):
        generator = torch.Generator().manual_seed(5489 + count)
        torch.empty(skipped, dtype=torch.int32, device="cpu").random_(generator=generator)
        before = generator.get_state()
        expected = torch.empty(count, dtype=torch.bool, device="cpu").bernoulli_(probability, generator=generator)
        after, mask = torch.empty_like(before), torch.empty_like(expected)
        draw(before, after, mask, count, _below(probability))
        if not (torch.equal(mask, expected) and torch.equal(after, generator.get_state())):
            return False
    return True
