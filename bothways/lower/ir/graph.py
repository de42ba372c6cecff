"""Decomposes a graph of ATen operations into primitive nodes and ATen calls."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

import bothways.lower.ir.lowerings  # noqa: F401  (registers what records give)
from bothways import ops, torch_compat
from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.operands import holds_numbers, operands
from bothways.lower.ir.prims import (
    COMPUTABLE,
    Buffer,
    Map,
    Memory,
    Node,
    Permute,
    Reduce,
    Reshape,
    Shape,
    is_dense,
    nodes_in,
)
from bothways.lower.ir.shapes import reshaped_strides
from bothways.lower.ir.sizes import Fraction, Outline, Size, SizeNames, as_float, is_fake, larger, outlined, smaller
from bothways.node_facts import GIVEN
from bothways.symbols import SYMBOLIC

aten = torch.ops.aten
# What computes sizes from sizes.
SIZE_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    **{function: function for function in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv, operator.pow,
        operator.neg,
    )},
    torch.sym_max: larger,
    torch.sym_min: smaller,
    float: as_float,
}  # fmt: skip
# The input of a graph that holds tensors of one element from the CPU, which operations on a GPU take as numbers.
NUMBERS = "numbers_from_cpu"
# Arguments that are looked up by what they are.
KEYS = (int, float, str, torch.dtype, type(None), Size, Fraction)
MOST_DIMENSIONS = 64  # of ATen's own iterator, and its sets of dimensions


class Decomposition:
    """The nodes of a graph for inputs laid out like these: goes through it node by node."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.graph = graph
        self.builder = Builder(_device_of(graph, inputs))
        self.sizes: SizeNames | None = None
        self.symbols: list[str] = []
        self.inputs: list[Memory] = []
        self.held: set[Memory] = set()  # inputs that stay in memory, whoever lets go of them
        self.constants: dict[Memory, torch.Tensor] = {}
        self.results: list[torch.fx.Node | None] = []
        self._values: dict[torch.fx.Node, Any] = {}
        self._relaid: dict[torch.fx.Node, Map] = {}
        self._known: dict[Any, Any] = {}
        self._returned: dict[Memory, torch.fx.Node] = {}
        values = iter(inputs)
        for node in graph.graph.nodes:
            match node.op:
                case "placeholder" if isinstance(node.meta.get("val"), SYMBOLIC):
                    self._values[node] = self._symbol(node, next(values))
                case "placeholder":
                    memory = self._input_memory(node.name, self._outline(node, next(values)))
                    self.inputs.append(memory)
                    self._values[node] = _whole(memory, node.name)
                    if node.name.startswith(GIVEN):
                        self.held.add(memory)
                    if node.name == NUMBERS:
                        self.builder.numbers.add(memory)
                    if all(map(_updates_input, node.users)):
                        self.builder.own_inputs.add(memory)
                case "get_attr":
                    tensor = getattr(graph, str(node.target))
                    memory = self._input_memory(node.name, tensor)
                    self.constants[memory] = tensor
                    self._values[node] = _whole(memory, node.name)
                case "output":
                    self.results = list(node.args[0])
                case _:
                    self._values[node] = self._lower(node)

    def _symbol(self, node: torch.fx.Node, now: int) -> Any:
        number = node.meta["val"]
        if self.sizes is None:
            self.sizes = SizeNames(number.node.environment)
        name = self.builder.names.claim(str(number.node.origin))
        self.symbols.append(name)
        return self.sizes.size(number)

    def _number(self, node: torch.fx.Node, args: Any) -> Any:
        assert self.sizes is not None
        value = node.meta.get("val")
        if value is not None:
            return self.sizes.size(value)
        try:
            return SIZE_ARITHMETIC[node.target](*args)
        except TypeError:
            raise NotLowered("a number is computed in a way that only Python knows") from None

    def _outline(self, node: torch.fx.Node, tensor: torch.Tensor) -> Any:
        if self.sizes is not None:
            return Outline(self.sizes, node.meta["val"])
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and torch_compat.has_symbolic_sizes(value):
            raise NotLowered("sizes change that the graph is not given")
        return tensor

    def _input_memory(self, name: str, tensor: torch.Tensor) -> Memory:
        return Memory(self.builder.unique(name), tensor.dtype, tuple(tensor.shape), tensor.stride())

    def _lower(self, node: torch.fx.Node) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._value)
        if node.target is operator.getitem:
            return args[0][args[1]]
        value = node.meta.get("val")
        if self.sizes is not None:
            if node.target in SIZE_ARITHMETIC:
                return self._number(node, args)
            value = outlined(self.sizes, value)
        self.builder.labels = {"name": node.name, "origin": _origin(node)}
        operation = ops.of(node.target)
        lowering = operation.lowering
        if lowering is not None and self.sizes is not None:
            args = operands(self.sizes, node.target, args)
        computable = lowering is not None and _is_computable(args, kwargs, value, operation.tolerates_empty)
        if lowering is not None and computable and holds_numbers(node.target, args, kwargs, value):
            key = None if operation.draws else _key((node.target, args, kwargs, _strides(value)))
            if key is not None and key in self._known:
                return self._known[key]  # computed already, for the same arguments
            try:
                result = self.builder.result(lowering(self.builder, value, *args, **kwargs))
                result = _laid_out(result, value)
            except NotLowered:
                pass
            except TypeError:
                if self.sizes is None:
                    raise
                # It computes with sizes what can be computed with numbers only.
            else:
                if key is not None:
                    self._known[key] = result
                return result
        if node.target is aten.native_batch_norm.default and _updates_input(node) and any(args[3:5]):
            raise NotLowered(f"{node.target} changes what others read")
        if node.target is aten.cudnn_batch_norm.default and args[5] and any(map(_is_computed, args[3:5])):
            raise NotLowered(f"{node.target} changes what was computed")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._argument)
        return self.builder.extern(node.target, args, kwargs, value, node.name)

    def _value(self, node: torch.fx.Node) -> Any:
        value = self._values[node]
        while isinstance(value, Node) and value in self.builder.current:
            value = self.builder.current[value]
        return value

    def _argument(self, node: torch.fx.Node) -> Any:
        """What ATen gets: how its results are laid out depends on how its arguments are."""
        value = self._value(node)
        return self._in_memory(node, value) if isinstance(value, Node) and value.numel else value

    def output(self, node: torch.fx.Node | None) -> Buffer | None:
        """A result of the graph in memory."""
        value = None if node is None else self._value(node)
        if node is None or not isinstance(value, Node):
            return None
        buffer = self._in_memory(node, value)
        first = self._returned.setdefault(buffer.memory, node)
        if first is node or _share_memory(first, node):  # who changes one has changed the other
            return buffer
        _check_copied(buffer)
        # Two results of the program are two tensors, though computed once.
        whole = _whole(buffer.memory, node.name) if buffer.dtype == buffer.memory.dtype else buffer
        copied = Map(whole.shape, whole.dtype, "copy", (whole,), name=node.name, strides=whole.strides)
        stored = self.builder.stored(copied)
        return stored if _is_whole(buffer) else self.builder.window(stored, buffer.shape, buffer.strides, buffer.offset)

    def _in_memory(self, node: torch.fx.Node, value: Node) -> Buffer:
        """A value in memory, laid out as eager has it."""
        buffer = self.builder.stored(value)
        strides = outlined(self.sizes, node.meta["val"]).stride()
        if not buffer.numel or _same_layout(buffer, strides):
            return buffer
        _check_copied(buffer)
        if node not in self._relaid:
            self._relaid[node] = Map(buffer.shape, buffer.dtype, "copy", (buffer,), name=node.name, strides=strides)
        return self.builder.stored(self._relaid[node])


def _share_memory(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether one is a view of the other, or both are views, in the program itself."""
    one, another = torch_compat.storage_identity(node.meta["val"]), torch_compat.storage_identity(other.meta["val"])
    return one == another


def _device_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.device:
    """Where tensors are: those that are given, or those that a graph makes of nothing."""
    values = (node.meta.get("val") for node in graph.graph.nodes)
    devices = (value.device for value in (*inputs, *values) if isinstance(value, torch.Tensor))
    return next(devices, torch.device("cpu"))


def _origin(node: torch.fx.Node) -> str:
    """The operation, and the line of the user's that it comes from."""
    where = re.match(r'File "(.*)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace", ""))
    if where is None:
        return str(node.target)
    file, line, text = where.groups()
    return f"{node.target}: {file.rpartition('/')[2]}:{line}  {text}"


def _key(tree: Any) -> Any:
    """Arguments as something that can be looked up; None when they cannot."""
    if isinstance(tree, (tuple, list)):
        items = [_key(item) for item in tree]
        return None if None in items else (type(tree), *items)
    if isinstance(tree, dict):
        return _key(sorted(tree.items()))
    if isinstance(tree, Node):
        return tree
    # 1, 1.0 and True are equal and mean different things, and so do zeros of both signs.
    spelled = str(tree) if isinstance(tree, float) else ""
    return (type(tree), tree, spelled) if isinstance(tree, KEYS) else _by_identity(tree)


def _by_identity(value: Any) -> Any:
    return (type(value), id(value)) if callable(value) else None


def _strides(value: Any) -> Any:
    fakes = value if isinstance(value, (tuple, list)) else [value]
    return [fake.stride() if is_fake(fake) else None for fake in fakes]


def _is_whole(buffer: Buffer) -> bool:
    return buffer.shape == buffer.memory.shape and buffer.strides == buffer.memory.strides and not buffer.offset


def _updates_input(user: torch.fx.Node) -> bool:
    """Whether an operation changes running statistics, though its schema does not say so, or has no use for them."""
    training = ops.of(user.target).training_at
    return training is not None and user.args[training] is True


def _is_computed(value: Any) -> bool:
    return isinstance(value, Node) and not (isinstance(value, Buffer) and value.memory.producer is None)


def _whole(memory: Memory, name: str) -> Buffer:
    return Buffer(memory.shape, memory.dtype, memory, memory.strides, name=name)


def _is_computable(args: Any, kwargs: Any, value: Any, empty: bool) -> bool:
    """Whether all tensors have elements (or may be ``empty``), of dtypes that kernels compute in, along no more
    dimensions than ATen's kernels take: the others refuse some of them."""
    fakes = [fake for fake in (value if isinstance(value, (tuple, list)) else [value]) if fake is not None]
    if not all(is_fake(fake) and fake.dtype in COMPUTABLE for fake in fakes):
        return False
    nodes = list(nodes_in((args, kwargs)))
    if not all(node.dtype in COMPUTABLE and len(node.shape) <= MOST_DIMENSIONS for node in nodes):
        return False
    return empty or (all(fake.numel() for fake in fakes) and all(node.numel for node in nodes))


def _check_copied(buffer: Buffer) -> None:
    if buffer.dtype not in COMPUTABLE:
        raise NotLowered(f"kernels do not copy what is of {buffer.dtype}")


def _laid_out(result: Any, value: Any) -> Any:
    """Remember how eager lays out computed results."""
    if isinstance(result, (tuple, list)):
        return type(result)(_laid_out(*pair) for pair in zip(result, value, strict=True))
    if isinstance(result, Node) and is_fake(value):
        _lay_out(result, value.stride())
    return result


def _lay_out(node: Node, strides: Shape | None) -> None:
    if strides is None or not is_dense(node.shape, strides):
        return
    match node:
        case Map() | Reduce():
            node.strides = node.strides or strides
        case Permute():
            places = sorted(range(len(node.dims)), key=node.dims.__getitem__)
            _lay_out(node.arg, tuple(strides[place] for place in places))
        case Reshape():
            _lay_out(node.arg, reshaped_strides(node.shape, strides, node.arg.shape))


def _same_layout(buffer: Buffer, strides: tuple[int, ...]) -> bool:
    return all(
        size == 1 or one == other for size, one, other in zip(buffer.shape, buffer.strides, strides, strict=True)
    )
