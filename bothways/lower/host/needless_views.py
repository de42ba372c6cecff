"""Removes views from a graph of ATen operations that only show what is there already.

Autograd's formulas are written one by one: one transposes what the next transposes back, and each takes its own view of
a weight. In C++ a view costs next to nothing; called from Python it costs as much as a small product. Two views of one
tensor with the same sizes, strides and offset are interchangeable, so one is enough. A result must stay an object of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways import ops

# Of what is viewed: sizes and strides.
Key = tuple[torch.fx.Node, tuple[int, ...], tuple[int, ...]]


def drop_needless_views(graph: torch.fx.Graph) -> None:
    """Change the graph: a view of what an earlier node shows is that node, and views that nothing reads are gone."""
    roots: dict[torch.fx.Node, torch.fx.Node] = {}
    seen: dict[Key, torch.fx.Node] = {}
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    returned = set(output.all_input_nodes)
    for node in graph.nodes:
        if _is_view(node):
            viewed: Any = node.args[0]
            roots[node] = roots.get(viewed, viewed)
        layout = _layout(node)
        if layout is None:
            continue
        known = seen.setdefault((roots.get(node, node), *layout), node)
        # What leaves the graph must be neither an input nor something else that leaves it.
        if known is not node and not (node in returned and (known in returned or known.op != "call_function")):
            node.replace_all_uses_with(known)
            if node in returned:
                returned.add(known)
    for node in reversed(graph.nodes):
        if node.users and node.op == "call_function" and (leave_out := LEAVE_OUT.get(str(node.target))) is not None:
            leave_out(node)
        if _is_view(node) and not node.users:
            graph.erase_node(node)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether it is a view that begins with the first element of what it is taken of."""
    is_call = node.op == "call_function" and ops.of(node.target).begins_alike
    return is_call and isinstance(node.args[0], torch.fx.Node)


def _of_view(node: torch.fx.Node) -> None:
    """A view of another view is one of what that is of; and a sum without the dimensions it is over needs none."""
    viewed: Any = node.args[0]
    if not isinstance(viewed, torch.fx.Node):
        return
    if str(viewed.target) == VIEW and isinstance(viewed.args[0], torch.fx.Node):
        node.args = (viewed.args[0], *node.args[1:])
        if not viewed.users:
            _of_view(node)
    elif str(viewed.target) == "aten.sum.dim_IntList" and len(viewed.users) == 1 and viewed.args[2:] == (True,):
        dims: Any = viewed.args[1]
        sizes, wanted = _layout(viewed), _layout(node)
        if isinstance(dims, (list, tuple)) and dims and sizes is not None and wanted is not None:
            count = len(sizes[0])
            kept = [place for place in range(count) if place not in [dim % count for dim in dims]]
            if wanted == (tuple(sizes[0][place] for place in kept), tuple(sizes[1][place] for place in kept)):
                viewed.args = viewed.args[:2]
                viewed.meta = {**viewed.meta, "val": node.meta["val"]}
                node.replace_all_uses_with(viewed)


def _of_transposed(node: torch.fx.Node) -> None:
    """A product with a transposed matrix is what a linear layer does, which transposes it itself."""
    args: Any = node.args
    *bias, tensor, weight = args
    if not isinstance(weight, torch.fx.Node) or str(weight.target) != "aten.t.default" or node.kwargs:
        return
    sizes = _layout(bias[0]) if bias and isinstance(bias[0], torch.fx.Node) else None
    if bias and (sizes is None or len(sizes[0]) != 1):
        return
    if len(weight.users) == 1:
        node.target, node.args = torch.ops.aten.linear.default, (tensor, weight.args[0], *bias)


VIEW = "aten.view.default"
# Operation -> what makes it do without a view.
LEAVE_OUT: dict[str, Callable[[torch.fx.Node], None]] = {
    VIEW: _of_view,
    "aten.mm.default": _of_transposed,
    "aten.addmm.default": _of_transposed,
}


def _layout(node: torch.fx.Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Sizes and strides, where they are plain numbers of an ordinary tensor."""
    value: Any = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    shape, stride = tuple(value.shape), value.stride()
    return (shape, stride) if all(type(number) is int for number in (*shape, *stride)) else None
