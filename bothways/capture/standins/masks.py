"""Elements at the places of a mask whose number is known before the graph runs."""

from __future__ import annotations

import torch


def at_known_places(tensor: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    """``tensor[mask]``."""
    return tensor[torch.nonzero_static(mask, size=count).unbind(1)]
