"""The state of PyTorch's saved-tensor hooks as captured code has set it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.fx


@dataclass
class SavedTensors:
    """Which hooks are in force, as the nodes that put them there, and with what message they were disabled."""

    pushed: list[torch.fx.Node] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
