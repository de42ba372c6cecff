"""Backends that get forward and backward graphs of ATen operations instead of the captured graph.

``aot(fw_compiler=…, bw_compiler=…)`` makes one from two functions that compile such graphs; ``aot_eager`` runs
them as they are. A graph is cut where people outside look at what autograd does inside; a part the differentiator
does not express runs as it was captured, with PyTorch's autograd.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.backends.in_place import change_in_place
from bothways.config import config
from bothways.grad import twins  # noqa: F401  # what differentiate needs later is loaded now
from bothways.grad.cutting.grad_modes import split_where_grad_begins, turns_grad
from bothways.grad.cutting.moving import followed, lead_to_each_other
from bothways.grad.cutting.sinking import split_before_new_data
from bothways.grad.cutting.split import is_of_leaf, makes_leaf, split
from bothways.grad.cutting.unsized import mark_unsized
from bothways.grad.differentiate import differentiate
from bothways.grad.halves.facts import FactMemo
from bothways.grad.nodes.renewed import (
    ReadAfterwards,
    WritesByIndex,
    mark_last_writes,
    mark_writes_by_index,
    writes_by_index,
)
from bothways.grad.tracing.aliases import sharing_depends_on_layout
from bothways.grad.tracing.origins import noting_origins
from bothways.grad.tracing.overlaps import writes_through
from bothways.grad.tracing.sizes import Sizes, sizes_of
from bothways.grad.tracing.trace import Decompositions
from bothways.grad.tracing.traced import ChangesInPlace, NotDifferentiable, NotForAllSizes, ReadsData
from bothways.lower.host.aten_calls import function_of
from bothways.node_facts import facts_of_node, note_of_node
from bothways.record import generated
from bothways.runtime.function_spelling import folded
from bothways.runtime.gradients import gradients
from bothways.runtime.nodes import ApplyFunction
from bothways.symbols import Undecided, hint
from bothways.torch_compat.said import said

GraphCompiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]
# What is remembered of a captured graph, given inputs and outlines of its outputs.
Remember = Callable[[torch.fx.GraphModule, list[torch.Tensor], list[torch.Tensor | None]], FactMemo | None]
# Whether a graph, called with inputs like these, is too small to be compiled.
IsSmall = Callable[[torch.fx.GraphModule, list[Any]], bool]
# Whether the halves of a graph, called with inputs like these, become kernels.
HasKernels = Callable[[list[Any]], bool]
# For graphs of at most so many elements (of the largest input): how many operations are few.
Limits = Sequence[tuple[int, int]]
# The same for graphs that write to an input by an index, where no kernel does: a node for the rest alone.
SMALL_BY_INDEX: Limits = ((1 << 14, 12),)
TOO_SMALL = "small: ATen is as fast"


@dataclass(frozen=True)
class Lowering:
    """How a backend of ours compiles the halves of a differentiated graph, and which graphs it leaves as captured.

    ``is_small`` says which graphs, and which parts of one that is cut, are left as captured. ``remember`` finds what
    other processes have compiled a captured graph to. With ``turns_images`` the images between convolutions lie as
    those like them best, which the results do not show. ``decompositions`` are operations that it does not want to
    see, with functions that do the same. ``has_kernels`` says whether there are any: without them ATen is called as
    eager calls it, nothing is computed again, and what is changed in place stays as captured. ``instead`` has
    what to call at breaks in the place of functions that are left to PyTorch. It is a backend that can be called, too.
    """

    name: str
    forward: GraphCompiler
    backward: GraphCompiler
    is_small: IsSmall | None = None
    remember: Remember | None = None
    turns_images: bool = False
    decompositions: Decompositions | None = None
    has_kernels: HasKernels | None = None
    instead: Mapping[Any, types.FunctionType] = field(default_factory=dict, hash=False)

    @property
    def __name__(self) -> str:
        return self.name

    def leaves_alone(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
        """Whether calling what a graph would be compiled to takes longer than running it as captured."""
        return self.is_small is not None and self.is_small(graph, inputs)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return differentiated(graph, inputs, self)


def aot(
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    remember: Remember | None = None,
    turns_images: bool = False,
    is_small: IsSmall | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]:
    """Make a backend from compilers of forward and backward graphs; by default one compiler serves for both.

    - ``fw_compiler``: takes a graph of ATen operations and its inputs, and returns a callable.
    - ``bw_compiler``: the same for backward graphs.
    - ``decompositions``: a mapping of ATen operations to functions that compute them by others; graphs then hold those
      instead, for changing sizes as well.
    - ``remember``, ``turns_images``, ``is_small``: as for a ``Lowering``.

    >>> def shown(graph, inputs):
    ...     print([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
    ...     return graph.forward
    >>> backend = bothways.backends.aot(fw_compiler=shown)
    >>> x = torch.ones(2, requires_grad=True)
    >>> bothways.compile(lambda x: x.sin().sum(), backend=backend)(x).backward()
    ['aten.sin.default', 'aten.sum.default']
    ['aten.expand.default', 'aten.cos.default', 'aten.mul.Tensor']
    """
    for name, compiler in (("fw_compiler", fw_compiler), ("bw_compiler", bw_compiler)):
        if not callable(compiler) and not (compiler is None and name == "bw_compiler"):
            raise TypeError(f"{name}={compiler!r}: a function of a graph and its inputs is expected")
    if decompositions is not None and not isinstance(decompositions, Mapping):
        raise TypeError(f"decompositions={decompositions!r}: a mapping of operations to functions is expected")
    backward = bw_compiler or fw_compiler
    if decompositions:
        remember = None  # what they do is not part of what a graph is remembered by
    lowering = Lowering("aot", fw_compiler, backward, is_small, remember, turns_images, decompositions)

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return differentiated(graph, inputs, lowering)

    return backend


@generated.stage("differentiate")
def differentiated(graph: torch.fx.GraphModule, inputs: list[Any], lowering: Lowering) -> Callable[..., Any]:
    """A captured graph with a forward and backwards of its own, which ``lowering`` compiles: the forward now, each
    backward when it first runs. What cannot be differentiated ahead of time stays as captured."""
    graph = folded(graph)
    if lowering.leaves_alone(graph, inputs):
        return as_captured(graph, TOO_SMALL)
    if _follows_in_inference_mode(graph.graph):
        return as_captured(graph, "a custom function follows gradients in inference mode")
    if not torch.is_grad_enabled() and any(turns_grad(node, True) for node in graph.graph.nodes):
        chain = split_where_grad_begins(graph, partial(_differentiated_part, lowering))
        return as_captured(graph, "it turns gradients on in a context") if chain is None else chain.forward
    if writes_through(graph.graph):
        return as_captured(graph, "it writes through a view whose elements share memory")
    chain = split_before_new_data(graph, partial(_differentiated_part, lowering))
    if chain is not None:
        return chain.forward
    part = partial(_part, lowering)
    is_one = _ends_inside(graph.graph, inputs) and split(graph, inputs, part, grad=False, inside=True) is None
    chain = None if is_one else split(graph, inputs, part, grad=_is_differentiated(graph, inputs))
    return _whole(lowering, graph, inputs) if chain is None else chain.forward


@generated.stage("differentiate")
def _whole(lowering: Lowering, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A graph, or a part of one, that is differentiated as a whole, or is cut where it cannot be."""
    known = sizes_of(graph, inputs)
    if known is None:
        return as_captured(graph, "it takes what is neither a tensor nor a size")
    sizes, inputs = known
    refusals: tuple[type[Exception], ...] = (NotDifferentiable, Undecided, *torch_compat.fake_tensor_errors())
    try:
        reads = [node.target.reads for node in graph.graph.nodes if isinstance(node.target, ApplyFunction)]
        layouts = _layouts(graph.graph)
        remember = None if sizes else lowering.remember
        keeps_all = any(facts_of_node(node).changes_as_data for node in graph.graph.nodes)
        memo = None if remember is None or keeps_all else remember(graph, inputs, layouts)
        function, turns = noting_origins(graph), lowering.turns_images and not reads and not _layout_shows(graph)
        compilers = partial(lower, lowering, "forward"), partial(lower, lowering, "backward")
        kernels = lowering.has_kernels is None or lowering.has_kernels(inputs)
        make = partial(
            differentiate, function, inputs, *compilers, reads, layouts, memo,
            turns_images=turns, decompositions=lowering.decompositions if kernels else None, kernels=kernels,
            goes_back=any(node.target is gradients for node in graph.graph.nodes), keeps_all=keeps_all,
        )  # fmt: skip
        try:
            return make(sizes=sizes)
        except NotForAllSizes:
            parts = _around_unsized(lowering, graph, inputs, sizes)
            if parts is not None:
                return parts
            return make(sizes=sizes.specialising)
    except ChangesInPlace as error:
        return as_captured(graph, str(error))
    except refusals as error:
        apart = not _marked(graph.graph, error)
        chain = split(graph, inputs, partial(_part, lowering), grad=_is_differentiated(graph, inputs), apart=apart)
        if chain is not None:
            return chain.forward
        return as_captured(graph, str(error) if isinstance(error, NotDifferentiable) else said(error))


def _part(lowering: Lowering, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """One part of a graph that is cut."""
    return as_captured(graph, TOO_SMALL) if lowering.leaves_alone(graph, inputs) else _whole(lowering, graph, inputs)


def _differentiated_part(lowering: Lowering, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """One part of a graph that is cut where nothing else of it is: a graph like any other, in the mode it runs in."""
    return differentiated(graph, inputs, lowering)


def _around_unsized(
    lowering: Lowering, graph: torch.fx.GraphModule, inputs: list[torch.Tensor], sizes: Sizes
) -> Callable[..., Any] | None:
    """The graph cut where operations ask for plain sizes; None where none does by itself."""
    grad = torch_compat.records_gradients() and any(tensor.requires_grad for tensor in inputs)
    if not mark_unsized(graph, sizes, grad):
        return None
    chain = split(graph, inputs, partial(_part, lowering), grad=grad)
    return None if chain is None else chain.forward


def lower(lowering: Lowering, half: str, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """One half of a differentiated graph as a function: its ``forward`` or a ``backward``."""
    generated.keep_graph(half, graph.graph)
    compile = lowering.forward if half == "forward" else lowering.backward
    with generated.stage("lower"):
        return compile(graph, inputs)


def _marked(graph: torch.fx.Graph, error: Exception) -> bool:
    """Mark where to cut a graph, if one operation was in the way."""
    if isinstance(error, ReadAfterwards):
        return mark_last_writes(graph)
    if isinstance(error, WritesByIndex):
        return mark_writes_by_index(graph)
    if not isinstance(error, ReadsData) or facts_of_node(error.node).as_captured:
        return False
    note_of_node(error.node, as_captured=True)
    return True


def as_captured(graph: torch.fx.GraphModule, reason: str) -> Callable[..., Any]:
    """The graph itself, with PyTorch's autograd, and for people why."""
    generated.as_captured(graph, reason)
    forward: Callable[..., Any] = graph.forward
    return forward


def _is_differentiated(graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    return torch_compat.records_gradients() and (
        any(getattr(value, "requires_grad", False) for value in inputs) or any(map(makes_leaf, graph.graph.nodes))
    )


def _follows_in_inference_mode(graph: torch.fx.Graph) -> bool:
    """Whether results of custom functions need gradients though nothing is followed: where gradients are on as well."""
    if not torch.is_inference_mode_enabled() or not any(isinstance(node.target, ApplyFunction) for node in graph.nodes):
        return False
    return torch.is_grad_enabled() or any(turns_grad(node, True) for node in graph.nodes)


def _ends_inside(graph: torch.fx.Graph, inputs: list[Any]) -> bool:
    """Whether what autograd does begins and ends inside, as in a whole training step: the caller cannot look at it, nor
    ask for gradients of one result by another one."""
    nodes = list(graph.nodes)
    if not any(node.target is gradients for node in nodes) or any(facts_of_node(node).watched for node in nodes):
        return False
    outputs = next(node for node in reversed(graph.nodes) if node.op == "output").all_input_nodes
    if any(map(is_of_leaf, outputs)):
        return False
    return not lead_to_each_other(outputs, followed(graph, inputs))


def _layouts(graph: torch.fx.Graph) -> list[torch.Tensor | None]:
    """Tensors laid out like the outputs of a captured graph."""
    outputs: Any = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    if isinstance(outputs, torch.fx.Node):  # one call whose results are not counted yet
        return []
    examples = [node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None for node in outputs]
    return [value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None for value in examples]


def _layout_shows(graph: torch.fx.GraphModule) -> bool:
    """Whether the user says how images lie, by which all operations then go, those that draw random numbers included;
    or could tell it from what shares memory."""
    formats = (torch.channels_last, torch.channels_last_3d)
    modules = [module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]
    if any(map(sharing_depends_on_layout, modules)):
        return True
    arguments = ((*node.args, *node.kwargs.values()) for each in modules for node in each.nodes)
    return any(isinstance(value, torch.memory_format) and value in formats for values in arguments for value in values)


def run_as_is(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph itself, without the machinery of ``nn.Module``."""
    change_in_place(graph.graph)
    return function_of(graph, takes_list=False)


def run_and_forget(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph as a function of one list, which it empties."""
    change_in_place(graph.graph)
    return function_of(graph, takes_list=True)


def _said(name: str, compiler: GraphCompiler) -> GraphCompiler:
    """A compiler that leaves operations to ATen, and says so."""

    def compile(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        generated.as_aten(graph, "the backend is aot_eager", name)
        return compiler(graph, inputs)

    return compile


def small_within(
    limits: Limits, with_gradients: Limits, layers: tuple[int, int] | None = None, by_index: Limits = ()
) -> Callable[[torch.fx.GraphModule, list[Any]], bool]:
    """Whether a captured graph is left as it is, since calling what it would be compiled to takes longer.

    ``layers`` is a limit for layers with gradients, where products alternate with what is one operation of ATen's;
    ``by_index`` are limits for graphs with gradients that write to an input by an index.
    """

    def is_small(graph: torch.fx.GraphModule, inputs: list[Any]) -> bool:
        if config.kernels_for_small_graphs:
            return False
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        operations = sum(map(_operations, graph.graph.nodes))
        elements = max((tensor.numel() for tensor in tensors), default=0)
        gradients = torch_compat.records_gradients() and any(tensor.requires_grad for tensor in tensors)
        if gradients and layers is not None and _are_small_layers(graph.graph, elements, operations, layers):
            return True
        few = with_gradients if gradients else limits
        if gradients and any(map(writes_by_index, graph.graph.nodes)):
            few = (*few, *by_index)
        return any(elements <= most and operations <= count for most, count in few)

    return is_small


def _are_small_layers(graph: torch.fx.Graph, elements: int, operations: int, limit: tuple[int, int]) -> bool:
    most, count = limit
    if elements > most or operations > count or any(map(_feeds_its_like, graph.nodes)):
        return False
    results = (node.meta.get("example_value") for node in graph.nodes)
    return all(hint(value.numel()) <= most for value in results if isinstance(value, torch.Tensor))


def _feeds_its_like(node: torch.fx.Node) -> bool:
    """Whether an operation that is no product is read by another such one."""
    return _is_no_product(node) and any(map(_is_no_product, node.users))


def _is_no_product(node: torch.fx.Node) -> bool:
    return node.op.startswith("call") and not ops.of_node(node).is_product


def _operations(node: torch.fx.Node) -> int:
    """How many a node is: one, or one for each tensor of a list that something is done to."""
    if not node.op.startswith("call") or ops.of_node(node).joins:
        return int(node.op.startswith("call"))
    return len(node.args[0]) if node.args and isinstance(node.args[0], (list, tuple)) else 1


# (elements of the largest input, operations), as many elements as you like: our autograd node is Python, and costs what
# calling a few operations without autograd saves.
SMALL_WITH_GRADIENTS = ((1 << 62, 5),)
SMALL_LAYERS = 1 << 16, 12  # elements of the largest tensor, operations: the same for more of them, in layers

# Forward and backward graphs of ATen operations, run as they are; what is too small to gain stays as captured.
aot_eager = Lowering(
    "aot_eager",
    forward=_said("forward", run_as_is),
    backward=_said("backward", run_and_forget),
    is_small=small_within((), SMALL_WITH_GRADIENTS, SMALL_LAYERS, SMALL_BY_INDEX),
)
