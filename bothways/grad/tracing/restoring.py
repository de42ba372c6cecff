"""What was written to lies as before: memory stays where it is, whatever the operation would give as a new tensor.

Functionalization takes for the new value of a tensor what the operation without ``_`` gives. Some of those lie in
another way: ``tril`` of a transposed matrix is a contiguous one. Whoever looks at the tensor, or at what it is a view
of, would see that in its strides, in what ``reshape`` shares memory with, and in what ``view`` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.fake.layout import is_dense
from bothways.grad.tracing.overlaps import tensors_in
from bothways.symbols import hint

Layout = tuple[torch.Tensor, int | None, tuple[int, ...], tuple[int, ...]]


def layouts_of(arguments: Sequence[object]) -> list[Layout]:
    """How tensors lie before an operation that may write to them, with their versions, where those are counted."""
    return [
        (tensor, torch_compat.version_of(tensor), tuple(tensor.shape), tensor.stride())
        for tensor in tensors_in(arguments)
    ]


def restore_layouts(node: torch.fx.Node, before: Sequence[Layout]) -> None:
    """Lay out as before what a node has written to. Memory with gaps, which only inputs are, is not made again: a trace
    that changes how an input lies is refused."""
    if ops.of_node(node).writes_no_elements:
        return
    for tensor, version, shape, strides in before:
        is_written = version is None or torch_compat.version_of(tensor) != version
        if not is_written or tuple(tensor.shape) != shape:
            continue
        dims = [dim for dim, size in enumerate(shape) if type(size) is not int or size != 1]
        if all(tensor.stride(dim) == strides[dim] for dim in dims):
            continue
        dims.sort(key=lambda dim: -hint(strides[dim]))
        if is_dense(shape, strides):
            order = [*(dim for dim in range(len(shape)) if dim not in dims), *dims]
            with torch.no_grad():
                own = tensor.permute(order).clone(memory_format=torch.contiguous_format)
                torch_compat.replace_functional(tensor, own.permute([order.index(dim) for dim in range(len(order))]))
