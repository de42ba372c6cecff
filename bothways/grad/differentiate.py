"""A captured graph with a compiled backward: the two graphs, and the autograd node that joins them.

``differentiate`` traces and splits a graph; the result is called like the graph. The backward for each set of
results that receive gradients is traced and compiled when it first runs, and a backward that has to be
differentiable itself is differentiated by the same road.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.again import Again, Tangents, Wanted, backward_function, chosen, is_told_of_none, visible
from bothways.grad.halves.facts import FactMemo, Facts, facts_of
from bothways.grad.halves.kept import Connections
from bothways.grad.halves.partition import NotRepeatable, extract, saved_values
from bothways.grad.halves.plan import Compiler, GradPlan
from bothways.grad.halves.recalled import Changing, Forward, Groups, recall_backward, recall_function
from bothways.grad.nodes.changed import sharing, write_back
from bothways.grad.nodes.node import Own, Unchanged, apply_node, pick
from bothways.grad.nodes.renewed import RENEWED, Renewing, may_be_renewed, prepare, renewals, renewed_inputs
from bothways.grad.nodes.running import as_traced, autograd_is_watched, released, strides_of, takes_list, with_arguments
from bothways.grad.nodes.usual import Usual, usual
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.sizes import Sizes
from bothways.grad.tracing.traced import (
    ChangesGradient,
    IndependentResults,
    Joint,
    Moment,
    NotDifferentiable,
    Result,
    ResultView,
    check_layouts,
    take_outputs,
)
from bothways.grad.tracing.whys import SHARED, UNEVEN, WATCHED
from bothways.record import generated
from bothways.runtime.compiled_graph import CompiledGraph, described, known_of
from bothways.runtime.listening import listening
from bothways.runtime.nodes import Reads

Inputs = Callable[[], Sequence[torch.Tensor]]


def differentiate(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    reads: Sequence[Reads] = (),
    expected: Sequence[torch.Tensor | None] = (),
    memo: FactMemo | None = None,
    sizes: Sizes | None = None,
    turns_images: bool = False,
    ours: frozenset[int] = frozenset(),
) -> Callable[..., Any]:
    """Compile a function of tensors that returns a tuple, with its backward if the inputs need one.

    With ``sizes`` it takes symbols before the tensors, as does what comes back.
    ``reads`` tells, when a backward runs, whether the custom functions inside would still do what was traced;
    ``expected`` are tensors laid out like the outputs, where that is known. What ``memo`` remembers of this function
    is not traced or compiled again. ``turns_images`` lets convolutions have theirs as they like them best; ``ours`` are
    inputs that a node of ours gave and nobody else sees. Raises ``NotDifferentiable`` for what the differentiator does
    not express.
    """
    how = GradPlan(fw_compiler, bw_compiler, reads, memo, sizes, tuple(expected) if turns_images else None, ours)
    return _differentiated(function, inputs, how, expected)


def _differentiated(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], how: GradPlan, expected: Sequence[torch.Tensor | None]
) -> Callable[..., Any]:
    memo, sizes = how.memo, how.sizes
    match recall_function(memo, len(inputs), len(expected) or None):
        case Groups(groups):
            return _side_by_side(function, inputs, groups, how, expected)
        case Changing(places):
            return _renewing(function, inputs, places, how, expected)
        case Forward(facts, run):
            return _joined(function, facts, inputs, run, how)
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    try:
        joint = trace_joint(function, inputs, grad, sizes=sizes, expected=how.expected)
    except IndependentResults as found:
        if how.renewed:
            raise NotDifferentiable("independent results, one of which is an input that is changed") from found
        if memo is not None:
            memo.note({"groups": found.groups})
        return _side_by_side(function, inputs, found.groups, how, expected)
    except ChangesGradient:
        if not grad or how.renewed:
            raise
        places = renewed_inputs(function, inputs, sizes)
        if memo is not None:
            memo.note({"renewed": places})
        return _renewing(function, inputs, places, how, expected)
    check_layouts(joint, expected)
    has_backward = grad and any(joint.differentiable)
    saved = saved_values(joint) if has_backward else ()
    graph = extract(joint, joint.primals, [*joint.results, *joint.updates.values(), *saved], joint.kept_nodes)
    numbers = [] if sizes is None else sizes.now
    if not has_backward:
        # A compiler may write these results straight into the inputs they are for, and return those.
        updates = enumerate(joint.updates)
        graph.meta["writes"] = {len(joint.results) + number: len(numbers) + index for number, index in updates}
    facts = facts_of(joint, graph, saved, has_backward)
    if how.renewed:
        prepare(joint, facts, graph.graph, how.renewed, [tensor.requires_grad for tensor in inputs])
    compiled = how.fw_compiler(graph, [*numbers, *inputs])
    if joint.updates and not has_backward and getattr(compiled, "__self__", None) is graph:
        return function  # what is changed in place, and by no kernel, is changed fastest as captured
    _note(memo, facts.to_data(), compiled)
    return _joined(function, facts, inputs, compiled, how, joint)


def _renewing(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    places: tuple[int, ...],
    how: GradPlan,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    """Compile a function that changes inputs where autograd looks."""
    layouts = [*expected, *(inputs[place].detach() for place in places)] if expected else ()
    memo = None if how.memo is None else how.memo.part("renewed", repr(places))
    images = None if how.expected is None else tuple(layouts)
    skipped = 0 if how.sizes is None else len(how.sizes.symbols)
    how = replace(how, memo=memo, expected=images, renewed=places, plain=function)
    return _differentiated(Renewing(function, places, skipped), inputs, how, layouts)


def _note(memo: FactMemo | None, facts: Any, compiled: Callable[..., Any]) -> None:
    """Remember a compiled graph, where both it and the facts can be written down."""
    key = known_of(compiled).key
    if memo is not None and key is not None and facts is not None:
        memo.note({"facts": facts, "program": key})


def _joined(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    how: GradPlan,
    joint: Joint | None = None,
) -> Callable[..., Any]:
    """A compiled forward as a function like the original; ``joint`` is its trace, where there was one."""
    compiled = as_traced(compiled)
    if how.sizes is not None:
        from bothways.grad import sized

        assert joint is not None
        return sized.joined(function, facts, inputs, compiled, how, joint)
    if not facts.has_backward:
        return _inference(function, facts, inputs, compiled)
    return DifferentiatedGraph(function, facts, inputs, compiled, how, joint)


def _side_by_side(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    groups: list[list[int]],
    how: GradPlan,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    """Compile each group of outputs for itself."""
    parts = []
    for group in groups:
        layouts = [expected[position] for position in group] if expected else ()
        memo = None if how.memo is None else how.memo.part("outputs", repr(group))
        part = chosen(function, group)
        compiled = differentiate(
            part, inputs, how.fw_compiler, how.bw_compiler, how.reads, layouts, memo, how.sizes,
            how.expected is not None, how.ours,
        )  # fmt: skip
        parts.append((group, compiled))

    def call(*values: torch.Tensor) -> tuple[Any, ...]:
        found: dict[int, Any] = {}
        for group, run in parts:
            found.update(zip(group, run(*values), strict=True))
        return tuple(found[position] for position in range(len(found)))

    return call


def _inference(
    function: Callable[..., Any], facts: Facts, inputs: Sequence[torch.Tensor], compiled: Callable[..., Any]
) -> Callable[..., Any]:
    run = with_arguments(compiled)
    outputs, changed, count = facts.outputs, facts.changed, len(facts.differentiable)
    share = sharing(changed, len(inputs))
    only_results = not changed and outputs == [Result(index) for index in range(count)]
    unwatched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)

    refused: Sequence[int] | None = None if torch.is_grad_enabled() else ()

    def call(*values: torch.Tensor) -> Any:
        nonlocal refused
        if torch_compat.in_forward_mode() or (changed and share(values)):
            return function(*values)
        if unwatched:  # the results need no gradient, whatever the inputs do
            with torch_compat.below_autograd():
                results = run(*values)
        else:
            results = run(*values)
        if refused != ():
            results, refused = released(results, count, refused)
        if only_results:
            return results
        write_back(values, changed, results[count:], facts.uncounted)
        return take_outputs(outputs, values, results)

    return described(call, read_inputs=facts.read_inputs, writes_at_end=True)


# So many backwards are compiled for one graph; gradients of other layouts go back through plain autograd.
MOST_LAYOUTS = 8


class DifferentiatedGraph:
    """A graph whose backward is compiled."""

    def __init__(
        self,
        function: Callable[..., Any],
        facts: Facts,
        inputs: Sequence[torch.Tensor],
        compiled: Callable[..., Any],
        how: GradPlan,
        joint: Joint | None,
        connected: Connections | None = None,
    ) -> None:
        self.function = function
        self.plain = how.plain or function
        self.generated = generated.current()
        self.how = how
        self._forward_conditions = [read.forward for read in how.reads if read.forward is not None]
        self._backward_conditions = [read.backward for read in how.reads if read.backward is not None]
        self.differentiable = facts.differentiable
        self.needs_grad = tuple(tensor.requires_grad for tensor in inputs)
        self.outputs = facts.outputs
        self.result_count = len(facts.differentiable)
        self.changed, self.uncounted = facts.changed, facts.uncounted
        self.renewals = renewals(facts, how.renewed, self.needs_grad)
        self.share = sharing((*facts.changed, *how.renewed), len(inputs))
        self.unread = frozenset(renewal.place for renewal in self.renewals if not renewal.matters)
        self.changes_inputs = bool(facts.changed or how.renewed)
        self.is_random = facts.is_random
        self._expected = how.expected if facts.is_turned else None
        self.gpus = tuple(sorted({tensor.device.index for tensor in inputs if tensor.is_cuda}))
        self.read_inputs = facts.read_inputs
        self.needed_inputs = facts.needed_inputs
        # The rest is wanted only by a backward that is differentiated again.
        self.other_inputs = tuple(index for index in range(len(inputs)) if index not in self.needed_inputs)
        self.pick_needed, self.pick_others = pick(self.needed_inputs), pick(self.other_inputs)
        self._strange_inputs = [index for index in facts.strange_inputs if self.needs_grad[index]]
        self._uneven_inputs = tuple(index for index in facts.uneven_inputs if index not in how.ours)
        self._saved_positions = facts.saved_positions
        self.saves_something = bool(facts.saved_positions or facts.needed_inputs) or set(facts.parts) != {None}
        self.parts = facts.parts if len(set(facts.parts) - {None}) > 1 else None
        self.visible_count = self.result_count + len(self.changed)
        self.fixed = tuple(
            index
            for index in range(self.visible_count)
            if index >= self.result_count or not self.differentiable[index]
        )
        self.seen_outputs = self.outputs[: len(self.outputs) - len(how.renewed)]
        # The numbers of the results that the outputs are, where nothing else is to be done; and whether that is all.
        only_results = not self.changes_inputs and not any(isinstance(output, ResultView) for output in self.outputs)
        self._places = [getattr(output, "index", None) for output in self.outputs] if only_results else None
        self._returns_results = self._places == list(range(self.result_count))
        self.wanted_gradients = torch_compat.WantedGradients()
        self.autocast = torch_compat.autocast_now()
        self.joints = [] if joint is None else [joint]
        self._graphs: dict[tuple[Moment, Wanted | None], torch.fx.GraphModule] = {}
        known = known_of(compiled)
        self.looks_at_grad_mode, self.is_below_autograd = known.looks_at_grad_mode, known.is_below_autograd
        self.__bothways_graph__ = CompiledGraph(writes_at_end=True, share=self.share, read_inputs=facts.read_inputs)
        self.usual: Usual | None = None
        self._usuals: dict[Any, Usual | None] = {}
        # Whether a backward that was right once has only its gradients and the interpreter to ask.
        self._may_be_usual = self.saves_something and self.parts is None and not self._backward_conditions
        self.run_forward = with_arguments(compiled)
        self._backwards: dict[Any, Callable[..., Any]] = {}
        self.differentiable_backwards: dict[Any, Callable[..., Any]] = {}
        self.connected = None if connected is None else connected.saved
        self.hidden = None if connected is None else connected.hidden
        # Whether a backward may be asked for some of the gradients: not worth the question for a model's parameters.
        self.is_asked = connected is not None or bool(how.ours) or any(map(_is_data, inputs))
        self.statistics = facts.statistics_inputs
        self.again = self.base = Again(self.hidden is not None)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self.again.twin is not None and self.again.serves(inputs):
            return self.again.twin(*inputs)
        if autograd_is_watched() or (self.changes_inputs and self.share(inputs)):
            self.tell("some calls", WATCHED if autograd_is_watched() else SHARED)
            return self.plain(*inputs)
        if self._uneven_inputs and self._is_told(inputs):
            self.tell("some calls", UNEVEN)
            return self.plain(*inputs)
        if self.renewals and not may_be_renewed(inputs, self.renewals):
            self.tell("some calls", RENEWED)
            return self.plain(*inputs)
        results = apply_node(self, *(self._related(inputs) if self._strange_inputs else inputs))
        if self._returns_results:
            return results
        if self._places is not None:
            return tuple([None if place is None else results[place] for place in self._places])
        if self.changed:
            write_back(inputs, self.changed, results[self.result_count :], self.uncounted)
        return take_outputs(self.seen_outputs, inputs, results)

    def _related(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The inputs as the node may know them: autograd goes through all it leads to, and uses up what they saved."""
        return [value.detach() if index in self._strange_inputs else value for index, value in enumerate(inputs)]

    def _is_told(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether somebody would notice that a backward through some of the results comes to all inputs.

        Eager does not come near the inputs that only the others were computed from. Here they get None: to a leaf that
        is nothing, but hooks are called with it, custom functions make zeros of it, and what is behind is used up.
        """
        uneven = [inputs[index] for index in self._uneven_inputs]
        if self.how.ours:  # the backward of a twin, whose node is come to in any case: behind it None stays None
            return is_told_of_none(uneven)
        return any(not tensor.is_leaf or tensor._backward_hooks for tensor in uneven)

    # What the node calls.

    def tell(self, name: str, reason: str) -> None:
        """Say that something runs as it was captured, with PyTorch's autograd, and why."""
        generated.tell(self.generated, name, reason)

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Inputs,
        plain: bool,
        wanted: Wanted | None = None,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients from ``values``, what was saved; the list is used up, so that memory is freed early.

        ``inputs`` gives all inputs of the forward, for a backward that has to be traced first. Tangents that are not
        ``plain`` memory go through the graph as it was traced. All gradients are ``wanted`` unless some are named.
        """
        moment = strides_of(tangents), torch_compat.autocast_now(), False  # equal to the Moment, and made faster
        values += [tangent for tangent in tangents if tangent is not None]
        key = moment if wanted is None else (moment, wanted)
        run = self._backwards.get(key)
        if run is None:
            if len(self._backwards) >= MOST_LAYOUTS:
                raise NotRepeatable("the gradients are laid out in another way each time")
            run = self._backwards[key] = self._compile_backward(Moment(*moment), values, inputs(), wanted)
        if not plain:
            run = as_traced(self.backward_graph(Moment(*moment), inputs(), wanted).forward)
        elif takes_list(run) and self._may_be_usual:
            if key not in self._usuals:
                all_tangents = (*tangents, *[None] * len(self.changed))
                self._usuals[key] = usual(all_tangents, run, self.needs_grad if wanted is None else wanted)
            self.usual = self._usuals[key]
        gradients: Sequence[torch.Tensor | None] = run(values) if takes_list(run) else run(*values)
        return gradients

    def run_connected_backward(
        self, values: list[torch.Tensor], tangents: Tangents, inputs: Inputs, wanted: Wanted, plain: bool
    ) -> Sequence[torch.Tensor | None]:
        """Of a twin: the backward as a function of what its node saved and of gradients."""
        from bothways.grad import twins

        return twins.connected_backward(self, values, tangents, inputs, wanted, plain)

    def run_differentiable_backward(
        self,
        inputs: Sequence[torch.Tensor],
        tangents: Tangents,
        unchanged: Unchanged,
        wanted: Wanted,
        own: Own,
    ) -> Sequence[torch.Tensor | None]:
        """The backward as a function of inputs, gradients and the ``own`` results it reads, by their numbers."""
        from bothways.grad import twins

        return twins.differentiable_backward(self, inputs, tangents, unchanged, wanted, own)

    def twin(self, inputs: Sequence[torch.Tensor]) -> DifferentiatedGraph:
        """The same graph, whose node keeps what second derivatives go through."""
        from bothways.grad import twins

        with self.as_at_first(inputs) as examples, generated.kept_in(self.generated), listening():
            return twins.twin_of(self, self.function, examples)

    @property
    def read_tensors(self) -> Sequence[int]:
        """The inputs that the forward reads."""
        return self.read_inputs

    def bound(self, twin: Callable[..., Any]) -> Callable[..., Any] | None:
        """A twin of the graph as a function of tensors; None when it is not for this call's sizes."""
        return twin

    def _compile_backward(
        self, moment: Moment, values: list[torch.Tensor], inputs: Sequence[torch.Tensor], wanted: Wanted | None
    ) -> Callable[..., Any]:
        memo = self._memo_of_backward(moment, values, wanted)
        with generated.kept_in(self.generated), listening():
            run = recall_backward(memo, len(values), len(inputs))
            if run is None:
                run = self.how.bw_compiler(self.backward_graph(moment, inputs, wanted), list(values))
                _note(memo, {}, run)
        return as_traced(run)

    def _memo_of_backward(self, moment: Moment, values: list[torch.Tensor], wanted: Wanted | None) -> FactMemo | None:
        if self.how.memo is None:
            return None
        layouts = [(value.dtype, value.shape, value.stride(), value.device) for value in values]
        state = f"{torch_compat.operation_state()}"
        return self.how.memo.part("backward", f"{moment}", f"{layouts}", state, f"{wanted}")

    def backward_graph(
        self, moment: Moment, inputs: Sequence[torch.Tensor], wanted: Wanted | None
    ) -> torch.fx.GraphModule:
        if (moment, wanted) not in self._graphs:
            joint = self.joint(moment, inputs)
            self._graphs[moment, wanted] = extract(joint, self.backward_inputs(joint), joint.chosen_gradients(wanted))
        return self._graphs[moment, wanted]

    @property
    def may_be_copied(self) -> bool:
        """Whether the graph of a backward is all that the node's backward does."""
        return self.parts is None and self.connected is None and not self._backward_conditions

    def backward_inputs(self, joint: Joint) -> list[torch.fx.Node]:
        """What a backward takes: inputs, what was saved, gradients."""
        order = list(joint.recorder.graph.nodes)
        saved = [order[position + len(joint.tangents)] for position in self._saved_positions]
        return [*(joint.primals[index] for index in self.needed_inputs), *saved, *joint.tangents]

    @property
    def is_current(self) -> bool:
        """Whether the backward of every custom function inside would still do what was traced."""
        return not self._backward_conditions or all(holds() for holds in self._backward_conditions)

    def run_plain_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Tangents, unchanged: Unchanged, wanted: Wanted
    ) -> tuple[torch.Tensor | None, ...]:
        """The backward as the user's Python, after the forward was run again."""
        unchanged(range(len(inputs)))
        if not all(holds() for holds in self._forward_conditions):
            raise RuntimeError(
                "a global that the forward and the backward of a custom autograd.Function read was changed between "
                "them; keep what the backward needs on ctx"
            )
        tangents = visible(self, tangents)
        given = [tangent for tangent in tangents if tangent is not None]
        return backward_function(self, [tangent is not None for tangent in tangents], wanted)(*inputs, *given)

    def joint(self, moment: Moment, inputs: Sequence[torch.Tensor]) -> Joint:
        for known in self.joints:
            if known.moment == moment:
                self.joints.remove(known)
                return known
        with self.as_at_first(inputs) as examples:
            try:
                joint = trace_joint(
                    self.function, examples, True, moment, expected=self._expected, hidden=self.hidden
                )
            except NotDifferentiable as error:
                raise NotRepeatable(str(error)) from error
            if joint.is_turned != (self._expected is not None):
                raise NotRepeatable("images lie in another way")
            return joint

    @contextmanager
    def as_at_first(self, inputs: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """The inputs as tensors to trace the forward with, in the modes in which it ran."""
        with torch.inference_mode(False), torch.enable_grad(), torch_compat.autocast_as(self.autocast):
            pairs = zip(inputs, self.needs_grad, strict=True)
            yield [tensor.detach().requires_grad_(needed) for tensor, needed in pairs]


def _is_data(tensor: torch.Tensor) -> bool:
    """Whether somebody wants the gradient of something that is no parameter."""
    return tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)
