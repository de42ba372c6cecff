"""Backwards that are differentiated in turn, to any order.

A graph that meets the first of them makes a *twin*: the same graph, whose node also gives what autograd would have
saved, as results that the caller never sees. The twin's backward is a function of those, of inputs and of gradients,
and is differentiated like any function; what it finds about the hidden results comes to the twin's node with the
gradients of the others. So every operation runs as often as in eager. A graph without a twin runs its forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.halves.kept import check_complete
from bothways.grad.halves.partition import NotRepeatable, extract
from bothways.grad.nodes.node import CompiledNode, Own
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.sizes import Sizes
from bothways.grad.tracing.traced import IndependentResults, Joint, NotDifferentiable, Output, Result
from bothways.record import generated
from bothways.symbols import Undecided, hint

# After so many calls without a second derivative a graph goes back to saving what first ones need.
PATIENCE = 100

# No twin is made where one of these is raised.
REFUSALS: tuple[type[Exception], ...] = (NotDifferentiable, NotRepeatable, Undecided, torch.OutOfMemoryError)

Wanted = tuple[bool, ...]  # which inputs are to get a gradient
Tangents = Sequence[torch.Tensor | None]
Gradients = tuple[torch.Tensor | None, ...]


class TwinInUse:
    """The twin of one graph: made when it is first wanted, and in use while it is."""

    def __init__(self, refused: bool = False) -> None:
        self.twin: Any = None
        self._known: Any = None
        self._refused = refused
        self._left = 0

    def use(self, make: Callable[[], Any]) -> Any:
        """The twin, from now on in use; None when there is none."""
        if self._known is None and not self._refused:
            refusals: tuple[type[Exception], ...] = (*REFUSALS, *torch_compat.fake_tensor_errors())
            try:
                self._known = make()
            except refusals:
                self._refused = True
        self.wanted()
        return self._known

    def wanted(self) -> None:
        self.twin, self._left = self._known, PATIENCE

    def serves(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the twin is the one to be called: not where hooks would be called with gradients that are None."""
        self._left -= 1
        if self._left < 0:
            self.twin = None
        return self.twin is not None and not is_told_of_none([inputs[index] for index in self.twin.partly_reached])


def partly_reached(joint: Joint) -> tuple[int, ...]:
    """The inputs that only some of the results lead to, the hidden ones included: from the others they get None."""
    behind = [reached for reached, moves in zip(joint.reached, joint.differentiable, strict=True) if moves]
    everywhere = frozenset(range(len(joint.primals))).intersection(*behind)
    return tuple(index for index in range(len(joint.primals)) if index not in everywhere)


def is_told_of_none(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether Python of the user's would be run with a gradient that is None, where eager does not come near it."""
    for tensor in inputs:
        if tensor._backward_hooks:
            return True
        node = tensor.grad_fn
        if node is not None and _is_custom(node):
            return True
    return False


def _is_custom(node: Any) -> bool:
    kind = type(node)
    return issubclass(kind, torch.autograd.function.BackwardCFunction) and kind is not CompiledNode._backward_cls


def connected_graph(joint: Joint, inputs: Sequence[torch.fx.Node], wanted: Wanted | None) -> torch.fx.GraphModule:
    """The backward as a graph that can be differentiated; its gradients are the wanted ones."""
    outputs = joint.chosen_gradients(wanted)
    try:
        check_complete(joint, outputs, inputs)
    except NotDifferentiable as error:
        raise NotRepeatable(str(error)) from error
    return extract(joint, inputs, outputs)


def check_differentiable(joint: Joint, inputs: Sequence[torch.fx.Node], moving: Set[torch.fx.Node]) -> None:
    """Raise unless the backward from these inputs can be differentiated by those of them that are ``moving``.

    In it are operations that autograd never meets in eager, where it sees the backward before these are made of it.
    """
    graph = connected_graph(joint, inputs, None)
    outlines = tuple(node.meta["val"] for node in inputs)
    pairs = zip(inputs, outlines, strict=True)
    values = [_laid_out_like(value).requires_grad_(node in moving) for node, value in pairs]
    with generated.recording(None):  # what is traced here is not run
        _check_outputs(graph.forward, values, joint.sizes.about(outlines))


def _laid_out_like(value: torch.Tensor) -> torch.Tensor:
    """A real tensor, with nothing written into it, in the place of a fake one."""
    shape, strides = ([int(hint(number)) for number in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _check_outputs(function: Callable[..., Any], values: Sequence[torch.Tensor], sizes: Sizes) -> None:
    try:
        trace_joint(function, values, True, sizes=sizes)
    except IndependentResults as independent:
        for group in independent.groups:
            _check_outputs(chosen(function, group), values, sizes)


def chosen(function: Callable[..., Any], group: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """A function that gives some of the outputs of another."""

    def run(*values: Any) -> tuple[Any, ...]:
        outputs = function(*values)
        return tuple(outputs[position] for position in group)

    return run


def visible(graph: Any, tangents: Tangents) -> Tangents:
    """The gradients of the function's own results, for a backward that knows no others."""
    count = graph.result_count - len(graph.hidden or ())
    if any(tangent is not None for tangent in tangents[count:]):
        raise RuntimeError("a second derivative met sizes or globals that its first backward was not compiled for")
    return tangents[:count]


def backward_function(
    graph: Any,
    moves: Sequence[bool],
    wanted: Wanted,
    function: Callable[..., Any] | None = None,
    own: Own | None = None,
    told: Sequence[int] = (),
) -> Callable[..., Gradients]:
    """The backward of a graph as a function of inputs and gradients, by PyTorch's autograd, which runs it once more.

    ``moves`` says which results receive a gradient; ``function`` stands for the graph's own. Running statistics among
    the inputs have been updated, and are not once more, nor is what no gradient depends on. ``own`` are results of the
    first time; the ``told`` inputs are never told that there is no gradient.
    """
    count = len(graph.needs_grad)
    run = graph.function if function is None else function

    def backward(*everything: torch.Tensor) -> Gradients:
        inputs, tangents = list(everything[:count]), everything[count:]
        for index in graph.statistics:
            inputs[index] = inputs[index].clone()
        again = torch.is_grad_enabled()
        with torch.enable_grad(), torch_compat.settings_of_forward(graph.settings):
            leaves = [_own(value) if needed else value for value, needed in zip(inputs, graph.needs_grad, strict=True)]
            for place in told:
                leaves[place] = ZerosForNone.apply(leaves[place])
            outputs = run(*leaves)
        results = results_of(graph.outputs, outputs)
        for result in results if own else ():
            if type(result.grad_fn) is CompiledNode._backward_cls:
                setattr(result.grad_fn, "first_results", own)  # noqa: B010  # a name of the node's own
        roots = [result for result, moving in zip(results, moves, strict=True) if moving]
        sources = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
        gradients = iter(torch_compat.gradients(roots, sources, tangents, create_graph=again))
        return tuple(next(gradients) if want else None for want in wanted)

    return backward


class ZerosForNone(torch.autograd.Function):
    """The same value; the gradient behind it is never None."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def results_of(outputs: list[Output], values: Sequence[Any]) -> list[torch.Tensor]:
    """The graph's results found again among the outputs of the original function, or behind them."""
    results: dict[int, torch.Tensor] = {}
    for output, value in zip(outputs, values, strict=True):
        if isinstance(output, Result):
            results[output.index] = value
        elif output is not None and not output.of_input:
            results[output.base] = value._base
    return [results[index] for index in range(len(results))]


def _own(value: torch.Tensor) -> torch.Tensor:
    """The same value as a tensor of its own, through which gradients still reach the original."""
    return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
