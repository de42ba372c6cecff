"""Which strides of a computed tensor are known while it is captured.

A dimension of one element can have any stride, and the fakes choose another one than some kernels do. What views do
to strides is arithmetic, the same in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx

from bothways import ops

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue


def check_strides(tracer: Tracer, value: TensorValue, dim: object = None) -> None:
    """Stop where a kernel decides about a stride that is asked for: that of ``dim``, or all of them."""
    sizes = value.fake.shape
    if isinstance(dim, int) and -len(sizes) <= dim < len(sizes):
        sizes = (sizes[dim],)
    if any(size <= 1 for size in sizes) and not _is_view_of_input(value.node):
        tracer.stop("attribute_unknown", "cannot tell the strides of a computed tensor with a dimension of size 1")


def _is_view_of_input(node: torch.fx.Node) -> bool:
    while node.op != "placeholder":
        operation = ops.of_node(node)
        if not operation.is_view or operation.writes or len(node.all_input_nodes) != 1:
            return False
        node = node.all_input_nodes[0]
    return True
