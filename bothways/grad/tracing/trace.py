"""Records the ATen operations of a program as it runs on fake tensors.

``Recorder`` sits below autograd, so a program that calls ``autograd.grad`` gives one graph of forward and
backward together. It sees no data; what needs data raises. ``trace_wrapped`` marks a call that ``trace`` keeps
as one node instead of looking into it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.calls.drawing import filled_with_bernoulli
from bothways.errors import InvalidTarget
from bothways.fake import fake_tensor_mode
from bothways.fake.formulas import shared_extreme, shares_extreme
from bothways.fake.layout import is_dense
from bothways.grad.tracing.layouts import Layouts
from bothways.grad.tracing.overlaps import WritesShared
from bothways.grad.tracing.sizes import SymbolicArgument
from bothways.node_facts import note_of_node
from bothways.torch_compat import DispatchMode, tree_flatten, tree_map_only, tree_unflatten

if TYPE_CHECKING:
    from bothways.grad.tracing.origins import Origins

_BERNOULLI, _EMPTY_LIKE = torch.ops.aten.bernoulli.p, torch.ops.aten.empty_like.default
_AS_STRIDED_SCATTER = torch.ops.aten.as_strided_scatter.default
_VIEW_AS_REAL, _RESOLVE = torch.ops.aten.view_as_real.default, torch.ops.aten.resolve_conj.default
_CLONE, _MUL = torch.ops.aten.clone.default, torch.ops.aten.mul.Tensor
_BY_PLACE = frozenset({torch.ops.aten.as_strided.default, _AS_STRIDED_SCATTER})


def _may_be_conjugated(node: torch.fx.Node) -> bool:
    """Whether a tensor may say that its numbers are conjugated later, which ``view_as_real`` refuses: an input, or a
    view that says so. Stand-ins do not tell. What is computed has its own numbers, but for copies: those are left out
    of graphs where nothing needs them."""
    operation = ops.of(node.target)
    while operation.name != "_conj.default" and (node.target is _CLONE or operation.is_view):
        viewed = node.args[0]
        if not isinstance(viewed, torch.fx.Node):
            return True
        node, operation = viewed, ops.of(viewed.target)
    return not (operation.pointwise or operation.is_product)


# Arguments that hold no tensors.
_LEAVES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})

Decompositions = Mapping[Any, Callable[..., Any]]


class Recorder(DispatchMode):
    """A dispatch mode that writes every operation into a graph; those with a decomposition as what that does.

    ``answer`` tells what an operation returns; by default that is the next mode's business.
    """

    def __init__(
        self,
        decompositions: Decompositions | None = None,
        answer: Callable[..., Any] | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        super().__init__()
        self._answer = answer
        self.layouts = layouts
        self.origins: Origins | None = None  # tells which line an operation comes from
        self.graph = torch.fx.Graph()
        self._decompositions = decompositions or {}
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

    def known(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        """The node that a tensor was bound to."""
        return self._nodes.get(id(tensor))

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
        if func in self._decompositions:
            with self:
                result = self._decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self.layouts is not None:
            change = self.layouts.change_of(func)
            if change is not None:
                with self:
                    result = change(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        if func is _MUL and shares_extreme(*args):
            with self:
                return shared_extreme(*args)
        if func in _BY_PLACE and self.origins is not None and not self._lies_as_said(func, args[0]):
            raise WritesShared("elements are taken by where they lie in memory that is made anew")
        if func is _BERNOULLI and not args[0].is_contiguous() and self.node_of(args[0]).target is _EMPTY_LIKE:
            return self._fill_in_place(args, kwargs)
        result = func(*args, **kwargs) if self._answer is None else self._answer(func, args, kwargs)
        if not ops.of(func).is_question:
            self.record(func, args, kwargs, result)
        return result

    def _lies_as_said(self, func: Any, tensor: torch.Tensor) -> bool:
        """Whether the memory behind a tensor is laid out in every run as the trace has it: that of an input is, and new
        memory without gaps. ATen writes through ``as_strided`` to nothing else than contiguous tensors."""
        if func is _AS_STRIDED_SCATTER and not tensor.is_contiguous():
            return False
        node: Any = self.node_of(tensor)
        while node.op == "call_function" and ops.of(node.target).is_view and isinstance(node.args[0], torch.fx.Node):
            node = node.args[0]
        memory = node.meta["val"]
        is_given = node.op == "placeholder" or not isinstance(memory, torch.Tensor)
        return is_given or (memory.storage_offset() == 0 and is_dense(tuple(memory.shape), memory.stride()))

    def _fill_in_place(self, args: Any, kwargs: Any) -> Any:
        """Dropout fills a mask laid out like its input; the operation that functionalization makes of that does not."""
        result = args[0].clone() if self._answer is None else self._answer(_EMPTY_LIKE, args[:1], {})
        self.record(filled_with_bernoulli, args, kwargs, result)
        return result

    def record(self, target: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Write down a call that gave ``result``."""
        name = torch_compat.operation_name(target) or getattr(target, "__name__", None)
        named = {key: self._with_nodes(value) for key, value in kwargs.items()}
        operands = self._with_nodes(args)
        if target is _VIEW_AS_REAL and _may_be_conjugated(operands[0]):
            operands = (self.graph.call_function(_RESOLVE, operands),)
            operands[0].meta["val"] = args[0]
        node = self.graph.create_node("call_function", target, operands, named, name)
        if self.origins is not None:
            node.meta["stack_trace"] = self.origins.now()
        if not torch.is_grad_enabled():
            note_of_node(node, without_grad=True)
        self._bind_result(node, result)

    def _with_nodes(self, value: Any) -> Any:
        """Arguments with nodes for tensors; operations nest them in tuples and lists only."""
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self._with_nodes(item) for item in value])
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if kind is torch.SymInt or kind is torch.SymFloat:
            return SymbolicArgument(value)
        return value if kind in _LEAVES else tree_map_only(torch.Tensor, self.node_of, value)

    def _bind_result(self, node: torch.fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
        elif isinstance(result, (tuple, list)):
            node.meta["val"] = tuple(result)
            for index, item in enumerate(result):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self._bind_result(self.graph.call_function(operator.getitem, (node, index)), item)

    def module(self, outputs: Any, name: str) -> torch.fx.GraphModule:
        """Close the graph over ``outputs``, nodes and plain values, and make it callable."""
        self.graph.output(outputs)
        root = torch.nn.Module()
        for name, tensor in self.constants.items():
            root.register_buffer(name, tensor)
        return torch.fx.GraphModule(root, self.graph, name)


def trace(
    fn: Callable[..., Any], *, decompositions: Decompositions | None = None
) -> Callable[..., torch.fx.GraphModule]:
    """``trace(fn)(*args)`` returns the graph of ATen operations that ``fn(*args)`` runs.

    Tensors among the arguments, also inside containers, become the graph's inputs; everything else is a constant.

    - ``fn``: a function of tensors; it runs once, on tensors without data.
    - ``decompositions``: a mapping of ATen operations to functions; what the function does is recorded instead.

    >>> graph = bothways.trace(lambda x: torch.relu(x) + 1)(torch.ones(2))
    >>> [str(node.target) for node in graph.graph.nodes]
    ['x_1', 'aten.relu.default', 'aten.add.Tensor', 'output']
    """
    if not callable(fn):
        raise InvalidTarget(f"trace takes a function of tensors, not {fn!r}")
    if decompositions is not None and not isinstance(decompositions, Mapping):
        raise TypeError(f"decompositions={decompositions!r}: a mapping of operations to functions is expected")

    def traced(*args: Any) -> torch.fx.GraphModule:
        leaves, structure = tree_flatten(args)
        mode = fake_tensor_mode(allow_real=True)
        fakes = [mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        recorder = Recorder(decompositions)
        for name, fake in zip(_input_names(fn, args, len(leaves)), fakes, strict=True):
            if isinstance(fake, torch.Tensor):
                recorder.input(name, fake)
        with mode, recorder, _keeping_wrapped_calls(recorder):
            result = fn(*tree_unflatten(fakes, structure))
        outputs = tree_map_only(torch.Tensor, recorder.node_of, result)
        return recorder.module(outputs, getattr(fn, "__name__", "traced"))

    return traced


def _input_names(fn: Callable[..., Any], args: tuple[Any, ...], count: int) -> list[str]:
    """Inputs are named after the parameters, where there is one for each."""
    try:
        parameters = list(inspect.signature(fn).bind(*args).arguments)
    except (TypeError, ValueError):
        parameters = []
    if len(parameters) != count:
        return [f"arg{index}_1" for index in range(count)]
    return [f"{parameter}_1" for parameter in parameters]


_keeps_wrapped_calls: ContextVar[Recorder | None] = ContextVar("keeps_wrapped_calls", default=None)


@contextmanager
def _keeping_wrapped_calls(recorder: Recorder) -> Iterator[None]:
    token = _keeps_wrapped_calls.set(recorder)
    try:
        yield
    finally:
        _keeps_wrapped_calls.reset(token)


class WrappedCall:
    """A call that stands in a traced graph as one node.

    ``spelling`` is the module and the name that the text of the graph calls it by; its node is ``trace_wrapped``.
    """

    spelling = __name__, "trace_wrapped"
    _opname = "trace_wrapped"

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__module__, self.__name__ = self.spelling
        self.__qualname__ = self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"trace_wrapped[{getattr(self.fn, '__qualname__', repr(self.fn))}]"


def trace_wrapped(*args: Any, fn: Callable[..., Any], **kwargs: Any) -> Any:
    """Call ``fn(*args, **kwargs)``; ``trace`` records it as one opaque call. For functions of gradients.

    Plain Python calls the function and a compiled function captures it, while a traced graph calls it, side effects
    included, whenever it runs. The result is assumed to be laid out like the first tensor among the arguments.

    - ``args``: the function's arguments, at least one of them a tensor.
    - ``fn``: the function.
    - ``kwargs``: its keyword arguments.

    >>> bothways.trace_wrapped(torch.ones(2), fn=lambda gradient: gradient * 2)
    tensor([2., 2.])
    """
    recorder = _keeps_wrapped_calls.get()
    if recorder is None:
        return fn(*args, **kwargs)
    like = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    if like is None:
        raise TypeError("trace_wrapped needs a tensor among its arguments")
    with torch_compat.no_modes():
        result = torch_compat.fake_like(like)
    recorder.record(WrappedCall(fn), args, kwargs, result)
    return result
