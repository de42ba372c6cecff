"""What a ``GradScaler`` does about gradients that are no numbers, said with tensors."""

from __future__ import annotations

from typing import Any

import torch

Tensors = list[torch.Tensor]


def touched_by(optimizer: torch.optim.Optimizer) -> Tensors:
    """The tensors that a step may change: parameters, their gradients and what is kept for each of them."""
    tensors: Tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                tensors.append(parameter)
                tensors.append(parameter.grad)
                for kept in optimizer.state[parameter].values() if parameter in optimizer.state else ():
                    if isinstance(kept, torch.Tensor):
                        tensors.append(kept)
    return tensors


def copies(tensors: Tensors) -> Tensors:
    """The tensors as they are now."""
    return [tensor.detach().clone() for tensor in tensors]


def undo_where_infinite(tensors: Tensors, before: Tensors, optimizer_state: dict[str, Any]) -> None:
    """Give tensors back what they held if a gradient was found that is no number."""
    total: Any = sum(optimizer_state["found_inf_per_device"].values())
    skipped = total != 0
    was_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    for tensor, old in zip(tensors, before, strict=True):
        # Eager does not write here: as data, the change is not counted.
        tensor.data.copy_(torch.where(skipped.to(tensor.device), old, tensor))
    torch.set_grad_enabled(was_enabled)
