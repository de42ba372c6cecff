"""Counts what ATen does in a step: the calls that compute, each once, without views and without making room."""

from collections import Counter

import torch

# What gives a tensor without touching its elements.
FREE = frozenset(
    "aten::" + name
    for name in (
        "view as_strided as_strided_ t transpose expand reshape permute select slice unsqueeze squeeze detach alias "
        "split split_with_sizes unbind _unsafe_view empty empty_like empty_strided new_empty resize_ set_ to "
        "result_type resolve_conj resolve_neg narrow chunk broadcast_tensors lift_fresh contiguous diagonal expand_as "
        "_reshape_alias unfold movedim flatten view_as numpy_T swapaxes mT item is_nonzero _local_scalar_dense "
    ).split()
)


def computing_calls(step):
    """Name -> number of calls; an operation on a list of tensors is one, as it is on a GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step()
    counts = Counter()
    for event in recorded.events():
        if event.name.startswith("aten::") and event.name not in FREE and _is_innermost(event):
            counts[event.name] += 1
    return counts


def _is_innermost(event):
    if event.cpu_parent is not None and event.cpu_parent.name.startswith("aten::_foreach"):
        return False
    inner = any(child.name.startswith("aten::") and child.name not in FREE for child in event.cpu_children)
    return event.name.startswith("aten::_foreach") or not inner
