"""A captured graph with a compiled backward: the two graphs, and the autograd node that joins them.

``differentiate`` traces and splits a graph; the result is called like the graph. The backward for each set of
results that receive gradients is traced and compiled when it first runs, and a backward that has to be
differentiable itself is differentiated by the same road.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.joint import IndependentResults, Joint, NotDifferentiable, Output, Result, Strides, trace_joint
from bothways.grad.partition import NotRepeatable, extract, needed_inputs, saved_values
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
        self.saves_something = bool(saved or self.needed_inputs)
        positions = {node: index for index, node in enumerate(joint.recorder.graph.nodes)}
        self._saved_positions = [positions[node] - len(joint.tangents) for node in saved]
        self.forward_graph = extract(
            joint, joint.primals, [*joint.results, *joint.updates.values(), *saved], joint.kept_nodes
        )
        self.backward_graphs: dict[Strides, torch.fx.GraphModule] = {}
        self._joints = {joint.tangent_strides: joint}
        self._run_forward = with_arguments(fw_compiler(self.forward_graph, list(inputs)))
        self._backwards: dict[Strides, Callable[..., Any]] = {}
        self._differentiable_backwards: dict[Strides, Callable[..., Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if torch.is_anomaly_enabled() or (self.changed and share_memory(inputs, self.changed)):
            return self.function(*inputs)  # anomaly mode names the operation: it has to be autograd's own
        results = CompiledNode.apply(self, *inputs)
        write_back(inputs, self.changed, results[self.result_count :])
        return take_outputs(self.outputs, inputs, results)

    # What the node calls.

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = self._run_forward(*inputs)
        visible = self.result_count + len(self.changed)
        return tuple(results[:visible]), tuple(results[visible:])

    def run_backward(
        self, values: list[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients from ``values``, inputs and what was saved; the list is used up, so that memory is freed."""
        strides = strides_of(tangents)
        values += [tangent for tangent in tangents if tangent is not None]
        run = self._backwards.get(strides)
        if run is None:
            run = self._backwards[strides] = self._compile_backward(strides, values)
        return tuple(run(values) if takes_list(run) else run(*values))

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

    def _compile_backward(self, strides: Strides, values: list[torch.Tensor]) -> Callable[..., Any]:
        joint = self._joint(strides, values[: len(self.needs_grad)])
        order = list(joint.recorder.graph.nodes)
        saved = [order[position + len(joint.tangents)] for position in self._saved_positions]
        graph = extract(joint, [*joint.primals, *saved, *joint.tangents], joint.gradients)
        inputs = list(graph.graph.nodes)[: len(self.needs_grad)]
        if any(node.users and index not in self.needed_inputs for index, node in enumerate(inputs)):
            raise NotRepeatable("this backward reads an input that others do not, and that may have been changed")
        self.backward_graphs[strides] = graph
        return self._compilers[1](graph, list(values))

    @property
    def is_current(self) -> bool:
        """Whether the backward of every custom function inside would still do what was traced."""
        return all(holds() for holds in self._backward_conditions)

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


class CompiledNode(torch.autograd.Function):
    """One node of the autograd graph for a whole compiled graph."""

    @staticmethod
    def forward(ctx: Any, graph: DifferentiatedGraph, *inputs: torch.Tensor) -> Any:
        ctx.graph = graph
        ctx.set_materialize_grads(False)
        ctx.random_state = torch.get_rng_state() if graph.is_random else None
        # Kernels look at the grad mode to decide what they keep for the backward, as in eager.
        with torch.enable_grad(), torch_compat.below_autograd():
            visible, saved = graph.run_forward(inputs)
        kept = [value.clone() if index in graph.changed else value for index, value in enumerate(inputs)]
        ctx.save_for_backward(*(kept[index] for index in graph.needed_inputs), *saved)
        # The rest is wanted only by a backward that is differentiated again; changing it is no error until then.
        ctx.others = {i: (v, v._version) for i, v in enumerate(kept) if i not in graph.needed_inputs}
        # To autograd a result is nobody's view, whatever buffer inside the graph it is a window on.
        visible = tuple(value.detach() if value._is_view() else value for value in visible)
        fixed = [value for value, moves in zip(visible, graph.differentiable, strict=False) if not moves]
        ctx.mark_non_differentiable(*fixed, *visible[graph.result_count :])
        return visible

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        graph: DifferentiatedGraph = ctx.graph
        # A node that saved nothing can be gone through any number of times, in eager as well.
        values = list(ctx.saved_tensors) if graph.saves_something else []
        count = len(graph.needed_inputs)
        inputs = {index: value for index, (value, _) in ctx.others.items()}
        inputs |= dict(zip(graph.needed_inputs, values[:count], strict=True))
        ordered = [inputs[index] for index in range(len(inputs))]
        given = tangents[: graph.result_count]
        current = graph.is_current
        if current and not torch.is_grad_enabled():
            # What was saved is in this list and nowhere else, unless the graph is retained: operations free it as
            # they go, as eager's do.
            torch_compat.release_saved_tensors(ctx)
            values[:count] = ordered
            try:
                return None, *graph.run_backward(values, given)
            except NotRepeatable:
                pass  # the other way runs the whole forward again, with the same random numbers
        check_unchanged(ctx.others.values())
        run = graph.run_differentiable_backward if current else graph.run_plain_backward
        if ctx.random_state is None:
            return None, *run(ordered, given)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random_state)
            return None, *run(ordered, given)


def check_unchanged(values: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Raise as autograd does when something the backward needs was changed since the forward."""
    for tensor, version in values:
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
                "instead."
            )
