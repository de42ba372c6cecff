"""A captured graph with a compiled backward: the two graphs, and the autograd node that joins them.

``differentiate`` traces and splits a graph; the result is called like the graph. The backward for each set of
results that receive gradients is traced and compiled when it first runs, and a backward that has to be
differentiable itself is differentiated by the same road.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.joint import IndependentResults, Joint, NotDifferentiable, Output, Result, Strides, trace_joint
from bothways.grad.node import apply_node
from bothways.grad.partition import extract, needed_inputs, saved_values
from bothways.runtime.nodes import Reads

Compiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


def differentiate(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    reads: Sequence[Reads] = (),
) -> Callable[..., Any]:
    """Compile a function of tensors that returns a tuple, with its backward if the inputs need one.

    ``reads`` tells, when a backward runs, whether the custom functions inside would still do what was traced.
    Raises ``NotDifferentiable`` for what the differentiator does not express.
    """
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    try:
        joint = trace_joint(function, inputs, None, grad)
    except IndependentResults as found:
        return _side_by_side(function, inputs, found.groups, fw_compiler, bw_compiler, reads)
    if not grad or not any(joint.differentiable):
        return _inference(function, joint, inputs, fw_compiler)
    return DifferentiatedGraph(function, joint, inputs, fw_compiler, bw_compiler, reads)


def _side_by_side(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    groups: list[list[int]],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    reads: Sequence[Reads],
) -> Callable[..., Any]:
    """Compile each group of outputs for itself."""

    def only(group: list[int]) -> Callable[..., Any]:
        def chosen(*values: torch.Tensor) -> tuple[Any, ...]:
            outputs = function(*values)
            return tuple(outputs[position] for position in group)

        return chosen

    parts = [(group, differentiate(only(group), inputs, fw_compiler, bw_compiler, reads)) for group in groups]

    def call(*values: torch.Tensor) -> tuple[Any, ...]:
        found: dict[int, Any] = {}
        for group, run in parts:
            found.update(zip(group, run(*values), strict=True))
        return tuple(found[position] for position in range(len(found)))

    return call


def _inference(
    function: Callable[..., Any], joint: Joint, inputs: Sequence[torch.Tensor], compiler: Compiler
) -> Callable[..., Any]:
    graph = extract(joint, joint.primals, [*joint.results, *joint.updates.values()], joint.kept_nodes)
    run = with_arguments(compiler(graph, list(inputs)))
    outputs, changed, count = joint.outputs, list(joint.updates), len(joint.results)
    if not changed and outputs == [Result(index) for index in range(count)]:
        return run

    def call(*values: torch.Tensor) -> Any:
        if changed and share_memory(values, changed):
            return function(*values)
        results = run(*values)
        write_back(values, changed, results[count:])
        return take_outputs(outputs, values, results)

    return call


def take_outputs(outputs: list[Output], inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of the original function from what the graph returned."""
    return tuple(_take(output, inputs, results) for output in outputs)


def _take(output: Output, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
    if output is None:
        return None
    return results[output.index] if isinstance(output, Result) else output.take(inputs, results)


def share_memory(inputs: Sequence[torch.Tensor], changed: list[int]) -> bool:
    """Whether an input that is mutated shares its memory with another one, which would have to see the change."""
    memory = [torch_compat.storage_identity(tensor) for tensor in inputs]
    return any(memory.count(memory[index]) > 1 for index in changed)


def write_back(inputs: Sequence[torch.Tensor], changed: list[int], values: Sequence[torch.Tensor]) -> None:
    """Give the inputs that were mutated their new values."""
    with torch.no_grad():
        for index, value in zip(changed, values, strict=True):
            inputs[index].copy_(value)


class DifferentiatedGraph:
    """A graph whose backward is compiled."""

    def __init__(
        self,
        function: Callable[..., Any],
        joint: Joint,
        inputs: Sequence[torch.Tensor],
        fw_compiler: Compiler,
        bw_compiler: Compiler,
        reads: Sequence[Reads],
    ) -> None:
        self.function = function
        self._reads = reads
        self._forward_conditions = [read.forward for read in reads if read.forward is not None]
        self._backward_conditions = [read.backward for read in reads if read.backward is not None]
        self._compilers = fw_compiler, bw_compiler
        self.differentiable = joint.differentiable
        self.needs_grad = tuple(tensor.requires_grad for tensor in inputs)
        self.outputs = joint.outputs
        self.result_count = len(joint.results)
        self.changed = list(joint.updates)
        self.is_random = bool(joint.random_nodes)
        # The joint traces of one function agree on the forward, operation by operation: positions name the values.
        saved = saved_values(joint)
        self.needed_inputs = needed_inputs(joint)
        # The rest is wanted only by a backward that is differentiated again.
        self.other_inputs = tuple(index for index in range(len(inputs)) if index not in self.needed_inputs)
        self.saves_something = bool(saved or self.needed_inputs)
        self.visible_count = self.result_count + len(self.changed)
        self.fixed = tuple(
            index
            for index in range(self.visible_count)
            if index >= self.result_count or not self.differentiable[index]
        )
        self._returns_results = not self.changed and self.outputs == [Result(i) for i in range(self.result_count)]
        positions = {node: index for index, node in enumerate(joint.recorder.graph.nodes)}
        self._saved_positions = [positions[node] - len(joint.tangents) for node in saved]
        self.forward_graph = extract(
            joint, joint.primals, [*joint.results, *joint.updates.values(), *saved], joint.kept_nodes
        )
        self.backward_graphs: dict[Strides, torch.fx.GraphModule] = {}
        self._joints = {joint.tangent_strides: joint}
        compiled = fw_compiler(self.forward_graph, list(inputs))
        self.looks_at_grad_mode = getattr(compiled, "looks_at_grad_mode", True)
        self.run_forward = with_arguments(compiled)
        self._backwards: dict[Strides, Callable[..., Any]] = {}
        self._differentiable_backwards: dict[Strides, Callable[..., Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if torch.is_anomaly_enabled() or (self.changed and share_memory(inputs, self.changed)):
            return self.function(*inputs)  # anomaly mode names the operation: it has to be autograd's own
        results = apply_node(self, *inputs)
        if self._returns_results:
            return results
        write_back(inputs, self.changed, results[self.result_count :])
        return take_outputs(self.outputs, inputs, results)

    # What the node calls.

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Callable[[], Sequence[torch.Tensor]],
    ) -> Sequence[torch.Tensor | None]:
        """The gradients from ``values``, what was saved; the list is used up, so that memory is freed early.

        ``inputs`` gives all inputs of the forward, for a backward that has to be traced first.
        """
        strides = strides_of(tangents)
        values += [tangent for tangent in tangents if tangent is not None]
        run = self._backwards.get(strides)
        if run is None:
            run = self._backwards[strides] = self._compile_backward(strides, values, inputs())
        gradients: Sequence[torch.Tensor | None] = run(values) if takes_list(run) else run(*values)
        return gradients

    def run_differentiable_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The backward as a function of inputs and gradients that can be differentiated again."""
        strides = strides_of(tangents)
        given = [tangent for tangent in tangents if tangent is not None]
        run = self._differentiable_backwards.get(strides)
        if run is None:
            run = self._differentiable_backwards[strides] = self._compile_differentiable(strides, [*inputs, *given])
        return tuple(run(*inputs, *given))

    def _compile_backward(
        self, strides: Strides, values: list[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        joint = self._joint(strides, inputs)
        order = list(joint.recorder.graph.nodes)
        saved = [order[position + len(joint.tangents)] for position in self._saved_positions]
        needed = [joint.primals[index] for index in self.needed_inputs]
        graph = extract(joint, [*needed, *saved, *joint.tangents], joint.gradients)
        self.backward_graphs[strides] = graph
        return self._compilers[1](graph, list(values))

    @property
    def is_current(self) -> bool:
        """Whether the backward of every custom function inside would still do what was traced."""
        return not self._backward_conditions or all(holds() for holds in self._backward_conditions)

    def run_plain_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The backward as the user's Python, after the forward was run again."""
        if not all(holds() for holds in self._forward_conditions):
            raise RuntimeError(
                "a global that the forward and the backward of a custom autograd.Function read was changed between "
                "them; keep what the backward needs on ctx"
            )
        given = [tangent for tangent in tangents if tangent is not None]
        return self._backward_function(strides_of(tangents))(*inputs, *given)

    def _compile_differentiable(self, strides: Strides, values: list[torch.Tensor]) -> Callable[..., Any]:
        backward = self._backward_function(strides)
        try:
            return differentiate(backward, values, *self._compilers, self._reads)
        except NotDifferentiable:
            return backward

    def _backward_function(self, strides: Strides) -> Callable[..., tuple[torch.Tensor | None, ...]]:
        """The backward as a function of inputs and gradients, by PyTorch's autograd."""
        count = len(self.needs_grad)

        def backward(*everything: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            inputs, tangents = everything[:count], everything[count:]
            with torch.enable_grad():
                leaves = [
                    _connected(value) if needed else value
                    for value, needed in zip(inputs, self.needs_grad, strict=True)
                ]
                outputs = self.function(*leaves)
            results = results_of(self.outputs, outputs)
            roots = [result for result, stride in zip(results, strides, strict=True) if stride is not None]
            sources = [leaf for leaf, needed in zip(leaves, self.needs_grad, strict=True) if needed]
            found = iter(torch.autograd.grad(roots, sources, tangents, allow_unused=True, create_graph=True))
            return tuple(next(found) if needed else None for needed in self.needs_grad)

        return backward

    def _joint(self, strides: Strides, inputs: Sequence[torch.Tensor]) -> Joint:
        known = self._joints.pop(strides, None)
        if known is not None:
            return known
        with torch.enable_grad():
            examples = [
                tensor.detach().requires_grad_(needed) for tensor, needed in zip(inputs, self.needs_grad, strict=True)
            ]
            return trace_joint(self.function, examples, strides, True)


def takes_list(run: Callable[..., Any]) -> bool:
    """Whether a compiled graph takes its inputs as one list that it may empty, so that memory is freed early."""
    return bool(getattr(run, "_boxed_call", False))


def with_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph as a function of its inputs."""
    return (lambda *values: run(list(values))) if takes_list(run) else run


def strides_of(tangents: Sequence[torch.Tensor | None]) -> Strides:
    """Which results received a gradient, and how each is laid out: formulas of eager look at it, so ours must."""
    return tuple(None if tangent is None else tangent.stride() for tangent in tangents)


def results_of(outputs: list[Output], values: Sequence[Any]) -> list[torch.Tensor]:
    """The graph's results found again among the outputs of the original function, or behind them."""
    found: dict[int, torch.Tensor] = {}
    for output, value in zip(outputs, values, strict=True):
        if isinstance(output, Result):
            found[output.index] = value
        elif output is not None and not output.of_input:
            found[output.base] = value._base
    return [found[index] for index in range(len(found))]


def _connected(value: torch.Tensor) -> torch.Tensor:
    """The same value as a tensor of its own, through which gradients still reach the original."""
    return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
