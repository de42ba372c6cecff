"""Differentiated graphs whose first inputs are sizes: one forward for all sizes, and a backward that is, too.

The backward is compiled when the guards of the program are written and in use. What its compilation has to assume
about sizes are conditions of that backward; where they do not hold, another one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad import twins
from bothways.grad.again import Wanted, connected_graph
from bothways.grad.differentiate import DifferentiatedGraph, Inputs
from bothways.grad.halves.facts import Facts
from bothways.grad.halves.kept import Connections
from bothways.grad.halves.partition import NotRepeatable, extract
from bothways.grad.halves.plan import GradPlan
from bothways.grad.nodes.changed import sharing, write_back
from bothways.grad.nodes.node import apply_node
from bothways.grad.nodes.renewed import RENEWED, may_be_renewed
from bothways.grad.nodes.running import as_traced, autograd_is_watched, released, strides_of, takes_list, with_arguments
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.sizes import Sizes
from bothways.grad.tracing.traced import Joint, Moment, NotDifferentiable, Output, Result, ResultView, Strides
from bothways.grad.tracing.traced import take_outputs as take_as_traced
from bothways.grad.tracing.whys import SHARED, UNEVEN, WATCHED
from bothways.record import generated
from bothways.runtime.compiled_graph import described
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
    how: GradPlan,
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

    refused: Sequence[int] | None = None if torch.is_grad_enabled() else ()

    def call(*values: Any) -> Any:
        nonlocal refused
        tensors = values[skipped:]
        if torch_compat.in_forward_mode() or (changed and share(tensors)):
            return function(*values)
        if watched:
            with torch_compat.below_autograd():
                results = run(*values)
        else:
            results = run(*values)
        if refused != ():
            results, refused = released(results, count, refused)
        write_back(tensors, changed, results[count:], facts.uncounted)
        return take_outputs(outputs, tensors, results, sizes.values(values[:skipped]))

    return described(call, writes_at_end=True)


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
    of: Any = None  # which gradients it gives, and by which of its inputs it is differentiated, where that is asked

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
    holds: Callable[..., bool]  # of a twin: for which sizes it is right

    def __init__(
        self,
        function: Callable[..., Any],
        facts: Facts,
        inputs: Sequence[torch.Tensor],
        compiled: Callable[..., Any],
        how: GradPlan,
        joint: Joint,
        connected: Connections | None = None,
    ) -> None:
        assert how.sizes is not None
        self.sizes = how.sizes
        self._shapes = [tuple(node.meta["val"].shape) for node in joint.results]
        self._sized_backwards: list[SizedBackward] = []
        self._connected_backwards: list[SizedBackward] = []
        self._operations = _forward_operations(joint)
        views = [output for output in facts.outputs if isinstance(output, ResultView)]
        self._takes_windows = any(view.window is not None for view in views)
        super().__init__(function, facts, inputs, compiled, how, joint, connected)

    def __call__(self, *values: Any) -> Any:
        count = len(self.sizes.symbols)
        numbers, tensors = values[:count], values[count:]
        twin = self.again.twin
        if twin is not None and self.again.serves(tensors) and twin.holds(*numbers):
            return twin(*values)
        if autograd_is_watched() or (self.changes_inputs and self.share(tensors)):
            self.tell("some calls", WATCHED if autograd_is_watched() else SHARED)
            return self.plain(*values)
        if self._uneven_inputs and self._is_told(tensors):
            self.tell("some calls", UNEVEN)
            return self.plain(*values)
        if self.renewals and not may_be_renewed(tensors, self.renewals):
            self.tell("some calls", RENEWED)
            return self.plain(*values)
        results = apply_node(self._at(numbers), *(self._related(tensors) if self._strange_inputs else tensors))
        if self.changed:
            write_back(tensors, self.changed, results[self.result_count :], self.uncounted)
        if not self._takes_windows:
            return take_as_traced(self.seen_outputs, tensors, results)
        return take_outputs(self.seen_outputs, tensors, results, self.sizes.values(numbers))

    def _at(self, numbers: tuple[int, ...]) -> SizedGraph:
        """The graph of the sizes of one call, which the autograd node keeps."""
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound.numbers = numbers
        bound.function, bound.run_forward = partial(self.function, *numbers), partial(self.run_forward, *numbers)
        return bound

    # What the node calls.

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Inputs,
        plain: bool,
        wanted: Wanted | None = None,
    ) -> Sequence[torch.Tensor | None]:
        strides, autocast = strides_of(tangents), torch_compat.autocast_now()
        found = self._fitting(self._sized_backwards, strides, autocast, wanted)
        everything: list[Any] = [*self.numbers, *values, *(tangent for tangent in tangents if tangent is not None)]
        values.clear()
        if found is None:
            found = self._compile_sized(tangents, autocast, everything, inputs(), wanted)
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
        wanted: Wanted | None,
    ) -> SizedBackward:
        with self.sizes.environment.later(self.sizes.values(self.numbers)) as conditions, listening():
            joint = self._joint_for(tangents, autocast, inputs)
            graph = extract(joint, self.backward_inputs(joint), joint.chosen_gradients(wanted))
            with generated.kept_in(self.generated):
                run = as_traced(self.how.bw_compiler(graph, everything.copy()))
            layouts = self.sizes.layouts(joint.moment.strides or ())
        return SizedBackward(self.sizes.condition(conditions), layouts, autocast, run, graph, wanted)

    def _fitting(
        self, known: Sequence[SizedBackward], strides: Strides, autocast: Any, of: Any
    ) -> SizedBackward | None:
        """The backward for this call among those that are known; raises when there are enough of them."""
        alike = [one for one in known if one.of == of]
        found = next((one for one in alike if one.fits(self.numbers, strides, autocast)), None)
        if found is None and len(alike) >= MOST_BACKWARDS:
            raise NotRepeatable("a backward for sizes that keep changing what it does")
        return found

    def _joint_for(
        self,
        tangents: Sequence[torch.Tensor | None],
        autocast: Any,
        inputs: Sequence[torch.Tensor],
        again: bool = False,
    ) -> Joint:
        strides = strides_of(tangents)
        for joint in self.joints:
            known = self.sizes.layouts(joint.moment.strides or ())(*self.numbers)
            if (known, joint.moment.autocast, joint.moment.again) == (strides, autocast, again):
                return joint
        symbolic = tuple(
            None if tangent is None else symbolic_strides(shape, tangent.shape, tangent.stride())
            for shape, tangent in zip(self._shapes, tangents, strict=True)
        )
        with self.as_at_first(inputs) as given:
            try:
                moment, sizes = Moment(symbolic, autocast, again), self.sizes.specialising
                joint = trace_joint(self._unbound, given, True, moment, sizes, self._expected, self.hidden)
            except NotDifferentiable as error:
                raise NotRepeatable(str(error)) from error
        if _forward_operations(joint) != self._operations:
            raise NotRepeatable("for these sizes the forward has other operations")
        return joint

    @property
    def _unbound(self) -> Callable[..., Any]:
        """The graph's function itself: the one of a call has numbers in the place of its symbols."""
        return self.function.func  # type: ignore[attr-defined]

    def run_connected_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Inputs,
        wanted: Wanted,
        plain: bool,
    ) -> Sequence[torch.Tensor | None]:
        strides, autocast = strides_of(tangents), torch_compat.autocast_now()
        values += [tangent for tangent in tangents if tangent is not None]
        of = wanted, tuple(value.requires_grad for value in values)
        found = self._fitting(self._connected_backwards, strides, autocast, of)
        everything: list[Any] = [*self.numbers, *values]
        if found is None:
            with self.sizes.environment.later(self.sizes.values(self.numbers)) as conditions:
                joint = self._joint_for(tangents, autocast, inputs(), again=True)
                given = self.backward_inputs(joint)
                graph = connected_graph(joint, given, wanted)
                outlines = tuple(node.meta["val"] for node in given)
                run = twins.compile_connected(self, graph, everything, replace(self.sizes, outlines=outlines))
                layouts = self.sizes.layouts(joint.moment.strides or ())
            found = SizedBackward(self.sizes.condition(conditions), layouts, autocast, run, graph, of)
            self._connected_backwards.insert(0, found)
        gradients: Sequence[torch.Tensor | None] = found.run(plain, everything)
        return gradients

    def twin(self, inputs: Sequence[torch.Tensor]) -> SizedGraph:
        later = self.sizes.environment.later(self.sizes.values(self.numbers))
        with later as conditions, self.as_at_first(inputs) as examples, generated.kept_in(self.generated), listening():
            twin: SizedGraph = twins.twin_of(self, self._unbound, examples, self.sizes)
        twin.holds = self.sizes.condition(conditions)
        return twin

    def bound(self, twin: Any) -> Callable[..., Any] | None:
        return partial(twin, *self.numbers) if twin.holds(*self.numbers) else None

    @property
    def read_tensors(self) -> list[int]:
        count = len(self.sizes.symbols)
        return [index - count for index in self.read_inputs if index >= count]
