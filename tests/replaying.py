"""What tests of replays share: a device with CUDA graphs, or the CPU with fake ones, and who counts replays."""

from __future__ import annotations

import contextlib

import torch
from fake_graphs import fake_graphs

import bothways

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def graphs(wanted=True, **settings):
    """Replay what is compiled inside: on a GPU if there is one, by fake graphs on the CPU otherwise."""
    with bothways.config.patch(cuda_graphs=wanted):
        if DEVICE == "cuda":
            yield None
        else:
            with fake_graphs(**settings) as recorder:
                yield recorder


def replays(compiled):
    """How many calls of each compiled graph were replayed, by name."""
    found = {}
    for compilation in bothways.history(compiled):
        for one in compilation.replays:
            found[one.name] = found.get(one.name, 0) + one.calls
    return found


def why_not(compiled):
    """All reasons why something is not replayed."""
    return [why for compilation in bothways.history(compiled) for one in compilation.replays for why in one.reasons]


def random(*shape, seed=None, **options):
    generator = None if seed is None else torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, device=DEVICE, generator=generator, **options)
