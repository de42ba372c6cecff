"""Why a section of a captured graph runs as it was captured, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from bothways import torch_compat
from bothways.grad.tracing.overlaps import is_view_in_secret
from bothways.node_facts import Watched, facts_of_call, facts_of_node

# Why a call runs as captured although its graph is compiled.
WATCHED = "anomaly mode, a hook or forward-mode derivatives watch autograd"
SHARED = "an input that is changed shares its memory with another one"
UNEVEN = "hooks or earlier operations would notice which inputs a backward comes to"

MODES = (torch_compat.enter_inference_mode, torch_compat.exit_inference_mode)

# What a node may be -> what that means for people; the first row that fits one of the nodes counts.
WHYS: tuple[tuple[Callable[[torch.fx.Node], Any], str], ...] = (
    (lambda node: facts_of_node(node).watched is Watched.NODE, "the autograd node of an operation is looked at"),
    (is_view_in_secret, "an operation gives views that autograd does not know of"),
    (lambda node: facts_of_call(node.target).region, "hooks are in force"),
    (lambda node: facts_of_call(node.target).warns, "an operation warns"),
    (lambda node: facts_of_call(node.target).traced, "processes tell each other something"),
    (lambda node: facts_of_node(node).writes_by_index, "an input is changed by an index, where it lies"),
    (lambda node: facts_of_node(node).as_captured, "a number or a size is read from data"),
    (lambda node: node.target is getattr and node.args[1] == "data", ".data is read"),
    (lambda node: getattr(node.target, "__name__", "") == "set_data_", ".data is set"),
    (lambda node: getattr(node.target, "__name__", "").startswith("require_"), "data is checked"),
    (lambda node: facts_of_call(node.target).opaque, "the user's Python runs, or will in the backward"),
    (lambda node: node.target in MODES, "inference mode begins or ends"),
    (lambda node: bool(node.kwargs.get("requires_grad")) or node.target in ("requires_grad_", torch.nn.Parameter), (
        "a tensor is made that asks for its own gradient"
    )),
    (lambda node: facts_of_node(node).watched is Watched.GRADIENT, "one of several results is hooked"),
    (lambda node: node.target is torch_compat.SDPAParams, "it asks which attention kernel there is"),
    (lambda node: node.target is torch_compat.set_grad_enabled, "gradients are turned on or off"),
)  # fmt: skip


def why_captured(nodes: Sequence[torch.fx.Node]) -> str:
    """Why these nodes run as they were captured."""
    whys = (why for fits, why in WHYS if any(map(fits, nodes)))
    return next(whys, "a setting is changed for some of the operations only")
