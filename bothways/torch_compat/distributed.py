"""Process groups: which of them collectives run in at once, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

_AVAILABLE = torch.distributed.is_available()
_c10d: Any = torch.distributed.distributed_c10d if _AVAILABLE else None
PROCESS_GROUPS: tuple[type, ...] = (torch.distributed.ProcessGroup,) if _AVAILABLE else ()
# Which reductions there are, but for those that hold a number.
REDUCTIONS: tuple[type, ...] = (torch.distributed.ReduceOp.RedOpType,) if _AVAILABLE else ()
# How ``torch.distributed.group.WORLD`` is found.
WORLD_GETTERS: tuple[Any, ...] = (
    tuple(type(owner).__dict__["WORLD"].fget for owner in (_c10d.group, _c10d.GroupMember)) if _AVAILABLE else ()
)


def collective(*names: str) -> tuple[Callable[..., Any], ...]:
    """The functions of ``torch.distributed`` with these names, as far as this PyTorch has them."""
    return tuple(getattr(torch.distributed, name) for name in names if hasattr(torch.distributed, name))


def group_in_use(group: Any = None) -> Any:
    """A process group, the default one for None, as long as what it is asked for runs at once: None where there is no
    such group any more, or calls are collected to run together."""
    world = _c10d._world
    if world.pg_coalesce_state:
        return None
    if group is None:
        group = world.default_pg
    return group if isinstance(group, PROCESS_GROUPS) and group in world.pg_map else None


def backend_of(group: Any, device: torch.device) -> str:
    """What a process group runs on for tensors on a device: gloo or nccl, nothing for others."""
    try:
        backend = group._get_backend(device)
    except RuntimeError:  # there is none for this device
        return ""
    kinds = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}
    classes = {name: getattr(torch.distributed, kind, None) for name, kind in kinds.items()}
    return next((name for name, kind in classes.items() if kind is not None and isinstance(backend, kind)), "")
