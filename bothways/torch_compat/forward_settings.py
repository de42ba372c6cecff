"""What decides which operations a function is made of, kept from its forward: a backward may be traced much later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from bothways.torch_compat.functions import autocast_as, autocast_now
from bothways.torch_compat.names import SDP_SWITCHES, get_sdp_priority, set_sdp_priority


class ForwardSettings(NamedTuple):
    """Autocast, the default dtype, and which kernels attention may take, in which order."""

    autocast: tuple[Any, ...] | None
    dtype: torch.dtype
    kernels: tuple[bool, ...]
    priority: list[int]


def forward_settings() -> ForwardSettings:
    """As they are now."""
    kernels = tuple(read() for read in SDP_SWITCHES.values())
    return ForwardSettings(autocast_now(), torch.get_default_dtype(), kernels, get_sdp_priority())


@contextmanager
def settings_of_forward(wanted: ForwardSettings) -> Iterator[None]:
    """Settings as they were in a forward."""
    before = forward_settings()
    try:
        _set(wanted)
        with autocast_as(wanted.autocast):
            yield
    finally:
        _set(before)


def _set(settings: ForwardSettings) -> None:
    torch.set_default_dtype(settings.dtype)
    for change, enabled in zip(SDP_SWITCHES, settings.kernels, strict=True):
        change(enabled)
    set_sdp_priority(settings.priority)
