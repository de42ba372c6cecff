"""Operations that look at their data before they compute: what they check becomes a check of the traced graph.

A trace has no data. What is checked here fails as the operation does, and the rest is ordinary operations that need no
data; an operation that is not in the table runs as captured, between parts that are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.runtime.nodes import DIFFERS, require_true


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor | None:
    if tensor.dtype is not torch.int64 or tensor.device.type != "cpu" or tensor.numel() == 0 or num_classes <= 0:
        return None
    low, high = tensor.min(), tensor.max()
    torch_compat.assert_async(low >= 0, "Class values must be non-negative.")
    torch_compat.assert_async(high < num_classes, "Class values must be smaller than num_classes.")
    # The result is contiguous however the classes lie, and what is compared lies as they do.
    return (tensor.contiguous().unsqueeze(-1) == torch.arange(num_classes, device="cpu")).to(torch.int64)


def _quantile(tensor: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _with_checked_place(torch.quantile, tensor, q, *args, **kwargs)


def _nanquantile(tensor: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _with_checked_place(torch.nanquantile, tensor, q, *args, **kwargs)


def _with_checked_place(
    function: Callable[..., torch.Tensor], tensor: torch.Tensor, q: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """ATen looks at ``q`` on a CPU alone, and in no trace: where it is a little below zero, the rest would not fail."""
    if isinstance(q, torch.Tensor) and tensor.device.type == "cpu" and q.numel():
        is_in_range = (q >= 0).logical_and(q <= 1).all()
        torch_compat.assert_async(is_in_range, "quantile() q values must be in the range [0, 1]")
    return function(tensor, q, *args, **kwargs)


def is_in_trace(node: torch.fx.Node) -> bool:
    """Whether a node does nothing but check data, and can do so in a trace. On a GPU a check of a kernel ends all."""
    if node.target is not require_true or not isinstance(node.args[0], torch.fx.Node):
        return False
    condition = node.args[0].meta.get("example_value")
    return isinstance(condition, torch.Tensor) and condition.device.type == "cpu"


def check_in_trace(condition: torch.Tensor) -> None:
    """Fail where a capture has assumed that all elements are true."""
    torch_compat.assert_async(condition.all() if condition.dim() else condition, DIFFERS)


# Operation -> the same without data, or None where it has to be asked itself.
CHECKED: Mapping[Any, Callable[..., torch.Tensor | None]] = {
    torch.nn.functional.one_hot: _one_hot, torch.quantile: _quantile, torch.nanquantile: _nanquantile
}  # fmt: skip


def without_data(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """What an operation gives, with its checks in the trace; None where it is not one of these."""
    rule = CHECKED.get(target)
    return None if rule is None else rule(*args, **kwargs)
