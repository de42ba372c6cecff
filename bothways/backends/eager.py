"""The ``eager`` backend: the graph runs as captured, one PyTorch call per node.

It is what the other backends are compared with, and what to choose to see whether capture or code
generation is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from bothways.record import generated


def eager(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Run ``gm`` as it is."""
    # The generated forward itself, not the module: nn.Module.__call__ costs more than a small graph.
    forward: Callable[..., Any] = gm.forward
    generated.as_captured(gm, "the backend is eager")
    return forward
