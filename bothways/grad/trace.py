"""Records the ATen operations of a program as it runs on fake tensors.

``Recorder`` sits below autograd, so a program that calls ``autograd.grad`` gives one graph of forward and
backward together. It sees no data; what needs data raises.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.torch_compat import DispatchMode, tree_flatten, tree_map_only, tree_unflatten

# Questions the dispatcher answers for itself; they compute nothing.
_QUESTIONS = frozenset({"prim::device", "prim::layout", "aten::size", "aten::stride", "aten::numel", "aten::dim"})


class Recorder(DispatchMode):
    """A dispatch mode that writes every operation into a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        # A tensor's id names it only while it lives.
        self._alive: list[torch.Tensor] = []

    def input(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        self.bind(tensor, node)
        return node

    def input_later(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        """An input that is met after operations were recorded; it still stands with the other inputs."""
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        with self.graph.inserting_before(first):
            return self.input(name, tensor)

    def bind(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        node.meta["val"] = tensor

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        node = self._nodes.get(id(tensor))
        return node if node is not None else self._constant(tensor)

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        """A tensor that came from nowhere: part of the program itself."""
        if torch_compat.is_fake(tensor):
            raise RuntimeError("a fake tensor of unknown origin reached the recorder")
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.get_attr(name)
        self.bind(tensor, node)
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.name in _QUESTIONS:
            return result
        to_node = functools.partial(tree_map_only, torch.Tensor, self.node_of)
        node = self.graph.call_function(func, to_node(args), to_node(kwargs))
        self._bind_result(node, result)
        return result

    def _bind_result(self, node: torch.fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
        elif isinstance(result, (tuple, list)):
            node.meta["val"] = tuple(result)
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self.bind(item, self.graph.call_function(operator.getitem, (node, index)))

    def module(self, outputs: Any) -> torch.fx.GraphModule:
        """Close the graph over ``outputs``, nodes and plain values, and make it callable."""
        self.graph.output(outputs)
        root = torch.nn.Module()
        for name, tensor in self.constants.items():
            root.register_buffer(name, tensor)
        return torch.fx.GraphModule(root, self.graph)


def trace(fn: Callable[..., Any]) -> Callable[..., torch.fx.GraphModule]:
    """``trace(fn)(*args)`` gives the graph of ATen operations that ``fn(*args)`` runs.

    Tensors among the arguments, nested ones too, become the graph's inputs; everything else is a constant of it.
    """

    def traced(*args: Any) -> torch.fx.GraphModule:
        leaves, structure = tree_flatten(args)
        mode = torch_compat.fake_tensor_mode()
        fakes = [mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        recorder = Recorder()
        for index, fake in enumerate(fakes):
            if isinstance(fake, torch.Tensor):
                recorder.input(f"arg{index}_1", fake)
        with mode, recorder:
            result = fn(*tree_unflatten(fakes, structure))
        outputs = tree_map_only(torch.Tensor, recorder.node_of, result)
        return recorder.module(outputs)

    return traced
