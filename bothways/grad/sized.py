"""Differentiated graphs whose first inputs are sizes: one forward for all sizes, and a backward that is, too.

The backward is compiled when the guards of the program are written and in use. What its compilation has to assume
about sizes are conditions of that backward; where they do not hold, another one is made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.changed import sharing, write_back
from bothways.grad.differentiate import (
    DifferentiatedGraph,
    How,
    as_traced,
    autograd_is_watched,
    strides_of,
    takes_list,
    with_arguments,
)
from bothways.grad.facts import Facts
from bothways.grad.joint import Joint, Moment, NotDifferentiable, Output, Result, Strides, trace_joint
from bothways.grad.node import Unchanged, apply_node
from bothways.grad.partition import NotRepeatable, extract
from bothways.grad.sizes import Sizes
from bothways.grad.whys import SHARED, UNEVEN, WATCHED
from bothways.runtime import generated
from bothways.runtime.listening import listening
from bothways.symbols import Symbol, expression_of
from bothways.symbols.layouts import symbolic_strides

# So many backwards are compiled for one program; sizes that none of them fits go back through plain autograd.
MOST_BACKWARDS = 8


def joined(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    how: How,
    joint: Joint,
) -> Callable[..., Any]:
    """A compiled forward as a function of sizes and tensors."""
    assert how.sizes is not None
    if facts.has_backward:
        return SizedGraph(function, facts, inputs, compiled, how, joint)
    return _inference(function, facts, inputs, compiled, how.sizes)


def _inference(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    sizes: Sizes,
) -> Callable[..., Any]:
    """A graph without a backward."""
    run = with_arguments(compiled)
    outputs, changed, count = facts.outputs, facts.changed, len(facts.differentiable)
    skipped = len(sizes.symbols)
    share = sharing(changed, len(inputs))
    watched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)

    def call(*values: Any) -> Any:
        tensors = values[skipped:]
        if torch_compat.in_forward_mode() or (changed and share(tensors)):
            return function(*values)
        if watched:
            with torch_compat.below_autograd():
                results = run(*values)
        else:
            results = run(*values)
        write_back(tensors, changed, results[count:], facts.uncounted)
        return take_outputs(outputs, tensors, results, sizes.values(values[:skipped]))

    call.writes_at_end = True  # type: ignore[attr-defined]
    return call


def take_outputs(
    outputs: list[Output], inputs: Sequence[torch.Tensor], results: Sequence[Any], values: dict[Symbol, int]
) -> tuple[Any, ...]:
    """The outputs of the original function; views are taken with the sizes of this call."""

    def size_now(number: Any) -> int:
        return expression_of(number).value(values)

    def taken(output: Output) -> Any:
        if output is None:
            return None
        if isinstance(output, Result):
            return results[output.index]
        base = inputs[output.base] if output.of_input else results[output.base]
        if output.window is None:
            return base
        with torch.no_grad() if output.no_grad else torch.set_grad_enabled(torch.is_grad_enabled()):
            return torch_compat.view_again(output.window, base, size_now)

    return tuple(map(taken, outputs))


@dataclass(frozen=True)
class SizedBackward:
    """A compiled backward, and for which sizes and gradients it is right."""

    holds: Callable[..., bool]
    layouts: Callable[..., Strides]
    autocast: Any
    run: Callable[..., Any]
    graph: torch.fx.GraphModule

    def fits(self, numbers: Sequence[int], strides: Strides, autocast: Any) -> bool:
        return self.autocast == autocast and self.holds(*numbers) and self.layouts(*numbers) == strides


def _forward_operations(joint: Joint) -> list[Any]:
    """What the forward does, in order: saved values are known by their positions in it."""
    return [
        node.target for node in joint.recorder.graph.nodes if node in joint.forward_nodes and node.op == "call_function"
    ]


class SizedGraph(DifferentiatedGraph):
    """A graph whose backward is compiled, as a function of sizes and tensors."""

    numbers: tuple[int, ...]

    def __init__(
        self,
        function: Callable[..., Any],
        facts: Facts,
        inputs: Sequence[torch.Tensor],
        compiled: Callable[..., Any],
        how: How,
        joint: Joint,
    ) -> None:
        assert how.sizes is not None
        self.sizes = how.sizes
        self._shapes = [tuple(node.meta["val"].shape) for node in joint.results]
        self._sized_backwards: list[SizedBackward] = []
        self._operations = _forward_operations(joint)
        super().__init__(function, facts, inputs, compiled, how, joint)

    def __call__(self, *values: Any) -> Any:
        count = len(self.sizes.symbols)
        numbers, tensors = values[:count], values[count:]
        if autograd_is_watched() or (self.changed and self.share(tensors)):
            self.tell("some calls", WATCHED if autograd_is_watched() else SHARED)
            return self.function(*values)
        if self._uneven_inputs and self._is_told(tensors):
            self.tell("some calls", UNEVEN)
            return self.function(*values)
        results = apply_node(self._at(numbers), *(self._related(tensors) if self._strange_inputs else tensors))
        write_back(tensors, self.changed, results[self.result_count :], self.uncounted)
        return take_outputs(self.outputs, tensors, results, self.sizes.values(numbers))

    def _at(self, numbers: tuple[int, ...]) -> SizedGraph:
        """The graph of the sizes of one call, which the autograd node keeps."""
        bound = copy.copy(self)
        bound.numbers = numbers
        bound.function, bound.run_forward = partial(self.function, *numbers), partial(self.run_forward, *numbers)
        return bound

    # What the node calls.

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Callable[[], Sequence[torch.Tensor]],
        plain: bool,
    ) -> Sequence[torch.Tensor | None]:
        strides, autocast = strides_of(tangents), torch_compat.autocast_now()
        found = next((one for one in self._sized_backwards if one.fits(self.numbers, strides, autocast)), None)
        everything: list[Any] = [*self.numbers, *values, *(tangent for tangent in tangents if tangent is not None)]
        values.clear()
        if found is None:
            found = self._compile_sized(tangents, autocast, everything, inputs())
            self._sized_backwards.insert(0, found)
        run = found.run if plain else as_traced(found.graph.forward)
        gradients: Sequence[torch.Tensor | None] = run(everything) if takes_list(run) else run(*everything)
        return gradients

    def _compile_sized(
        self,
        tangents: Sequence[torch.Tensor | None],
        autocast: Any,
        everything: list[Any],
        inputs: Sequence[torch.Tensor],
    ) -> SizedBackward:
        if len(self._sized_backwards) >= MOST_BACKWARDS:
            raise NotRepeatable("a backward for sizes that keep changing what it does")
        with self.sizes.environment.later(self.sizes.values(self.numbers)) as conditions, listening():
            joint = self._joint_for(tangents, autocast, inputs)
            graph = extract(joint, self._backward_inputs(joint), joint.gradients)
            with generated.kept_in(self._generated):
                run = as_traced(self._how.bw_compiler(graph, everything.copy()))
            layouts = self.sizes.layouts(joint.moment.strides or ())
        return SizedBackward(self.sizes.condition(conditions), layouts, autocast, run, graph)

    def _joint_for(
        self, tangents: Sequence[torch.Tensor | None], autocast: Any, inputs: Sequence[torch.Tensor]
    ) -> Joint:
        strides = strides_of(tangents)
        for joint in self._joints:
            known = self.sizes.layouts(joint.moment.strides or ())(*self.numbers)
            if (known, joint.moment.autocast) == (strides, autocast):
                return joint
        symbolic = tuple(
            None if tangent is None else symbolic_strides(shape, tangent.shape, tangent.stride())
            for shape, tangent in zip(self._shapes, tangents, strict=True)
        )
        with torch.inference_mode(False), torch.enable_grad(), torch_compat.autocast_as(self._autocast):
            given = [
                tensor.detach().requires_grad_(needed) for tensor, needed in zip(inputs, self.needs_grad, strict=True)
            ]
            try:
                # Of the graph itself: this one has the numbers of one call in the place of its symbols.
                function = self.function.func  # type: ignore[attr-defined]
                moment, sizes = Moment(symbolic, autocast), self.sizes.specialising
                joint = trace_joint(function, given, True, moment, sizes, self._expected)
            except NotDifferentiable as error:
                raise NotRepeatable(str(error)) from error
        if _forward_operations(joint) != self._operations:
            raise NotRepeatable("for these sizes the forward has other operations")
        return joint

    def run_differentiable_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], unchanged: Unchanged
    ) -> tuple[torch.Tensor | None, ...]:
        """By PyTorch's autograd: a second derivative is not compiled for all sizes."""
        unchanged(range(len(inputs)))
        given = [tangent for tangent in tangents if tangent is not None]
        return self._backward_function(strides_of(tangents))(*inputs, *given)

