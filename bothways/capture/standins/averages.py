"""Averages of models, said with tensors: whether it is the first model is asked when the average is computed."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.optim.swa_utils import get_swa_avg_fn, get_swa_multi_avg_fn

from bothways import torch_compat
from bothways.capture.standins.optimizers import grouped
from bothways.fake.lists import AT_ONCE

FOREACH_DEVICES = frozenset(torch_compat.foreach_devices())


def update_average(average: Any, model: torch.nn.Module) -> None:
    """``AveragedModel.update_parameters``: the first model is the average itself."""
    own: Any = average.parameters()
    other: Any = model.parameters()
    if average.use_buffers:
        own = itertools.chain(average.module.parameters(), average.module.buffers())
        other = itertools.chain(model.parameters(), model.buffers())
    owned: list[Any] = []
    others: list[Any] = []
    for mine, theirs in zip(own, other, strict=False):
        owned.append(mine.detach())
        others.append(theirs.detach().to(mine.device))
    is_first = average.n_averaged == 0
    average_into(average, owned, others)
    for mine, theirs in zip(owned, others, strict=True):
        chosen = torch.where(is_first.to(mine.device), theirs.to(mine.dtype), mine)
        # Eager writes once, either way: as data, the choice is not counted.
        (mine if is_uncounted(average, mine) else mine.data).copy_(chosen)
    if not average.use_buffers:
        for buffer, theirs in zip(average.module.buffers(), model.buffers(), strict=False):
            buffer.detach().copy_(theirs.detach().to(buffer.device))
    average.n_averaged += 1


def is_uncounted(average: Any, mine: torch.Tensor) -> bool:
    """Whether averages are made by a kernel for lists that does not count them; eager counts the first, a copy."""
    is_listed = average.multi_avg_fn is not None or average.avg_fn is None
    return is_listed and mine.device.type in AT_ONCE and mine.dtype.is_floating_point


def average_into(average: Any, owned: list[Any], others: list[Any]) -> None:
    """What is done with every model but the first."""
    if average.multi_avg_fn is None and average.avg_fn is not None:
        for mine, theirs in zip(owned, others, strict=True):
            mine.detach().copy_(average.avg_fn(mine.detach(), theirs, average.n_averaged.to(mine.device)))
        return
    lists: Any
    for (device, _), (lists, _) in grouped([owned, others]).items():
        count = average.n_averaged.to(device)
        if average.multi_avg_fn:
            average.multi_avg_fn(lists[0], lists[1], count)
        elif device.type in FOREACH_DEVICES:
            get_swa_multi_avg_fn()(lists[0], lists[1], count)
        else:
            function = get_swa_avg_fn()
            for mine, theirs in zip(lists[0], lists[1], strict=True):
                mine.copy_(function(mine, theirs, count))
