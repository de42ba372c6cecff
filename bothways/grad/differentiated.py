"""A graph whose backward is compiled: what the autograd node that joins the two halves needs of it.

The backward for each set of results that receive gradients is traced and compiled when it first runs, for all sizes
where the graph has symbols.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.again import Tangents, TwinInUse, Wanted, backward_function, is_told_of_none, visible
from bothways.grad.backwards import Backwards, CompiledBackward, after_numbers
from bothways.grad.halves.facts import FactMemo, Facts
from bothways.grad.halves.kept import Connections
from bothways.grad.halves.partition import NotRepeatable, asked_owners, check_takes, extract
from bothways.grad.halves.pieces import MOST_ASKED, Outline, Pieces, asked_for
from bothways.grad.halves.plan import GradPlan
from bothways.grad.halves.recalled import recall_backward
from bothways.grad.nodes.changed import Changes, Versions, recounting, sharing
from bothways.grad.nodes.node import Own, Unchanged, apply_node, in_order, pick
from bothways.grad.nodes.renewed import RENEWED, may_be_renewed, renewals
from bothways.grad.nodes.running import as_traced, autograd_is_watched, outlined, strides_of, takes_list, with_arguments
from bothways.grad.nodes.usual import Usuals
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.leaf_order import LeafHooks
from bothways.grad.tracing.sizes import always
from bothways.grad.tracing.traced import (
    Joint,
    Moment,
    NotDifferentiable,
    ResultView,
    Strides,
    take_outputs,
    takes_windows,
)
from bothways.grad.tracing.whys import SHARED, UNEVEN, WATCHED
from bothways.record import generated
from bothways.runtime.compiled_graph import described, known_of
from bothways.runtime.listening import listening
from bothways.symbols import Undecided
from bothways.symbols.layouts import symbolic_strides

Inputs = Callable[[], Sequence[torch.Tensor]]
MOST_BOUND = 64  # sizes of calls of which a graph is kept at hand


class DifferentiatedGraph:
    """A graph whose backward is compiled, as a function of tensors.

    With symbols there is one forward for all sizes, and ``at`` gives the graph of the sizes of one call, which the
    autograd node keeps; without them the graph is that already.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        facts: Facts,
        inputs: Sequence[torch.Tensor],
        compiled: Callable[..., Any],
        plan: GradPlan,
        joint: Joint | None,
        connected: Connections | None = None,
    ) -> None:
        self.sizes = plan.sizes
        self.numbers: tuple[int, ...] = ()  # of this call, in the place of the symbols
        self.holds: Callable[..., bool] = always  # of a twin: for which sizes it is right
        self._captured = function  # which takes the symbols first
        self.function = function
        self.plain = plan.plain or function  # of the symbols, too
        self.generated = generated.current()
        self.plan = plan
        self._forward_conditions = [read.forward for read in plan.reads if read.forward is not None]
        self._backward_conditions = [read.backward for read in plan.reads if read.backward is not None]
        self._outlines = [] if plan.sizes else [(tuple(tensor.shape), tensor.stride()) for tensor in inputs]
        self._set_facts(facts, plan, inputs)
        self._set_run(facts, compiled)
        self._backwards = Backwards()
        self.at_hand: dict[Any, CompiledBackward] = {}  # those that the sizes of this call have needed
        self._copied: dict[Moment, torch.fx.GraphModule] = {}
        self._read: dict[Any, Collection[int]] = {}  # for sizes and a moment
        self.differentiable_backwards: dict[Any, Callable[..., Any]] = {}
        self.twins_of_sizes: dict[tuple[int, ...], DifferentiatedGraph | None] = {}  # where there is no twin for all
        self.connected = None if connected is None else connected.saved
        self.hidden = None if connected is None else connected.hidden
        # Whether a backward may be asked for some of the gradients: not worth the question for a model's parameters.
        self.is_asked = bool(connected or plan.ours) or self.is_exact or any(map(_is_data, inputs))
        self.again = self.base = TwinInUse(self.hidden is not None)
        self.joints = [] if joint is None else [joint]
        if joint is not None and self.sizes:  # what a backward for other sizes has to agree with
            self._shapes = [tuple(node.meta["val"].shape) for node in joint.results]
            self._operations = _forward_operations(joint)

    def _set_facts(self, facts: Facts, plan: GradPlan, inputs: Sequence[torch.Tensor]) -> None:
        """Know what is read, changed, saved and returned."""
        self.differentiable = facts.differentiable
        self.needs_grad = tuple(tensor.requires_grad for tensor in inputs)
        self.outputs = facts.outputs
        self.result_count = len(facts.differentiable)
        self.changed, self.changes = facts.changed, Changes(facts.changed, facts.counts)
        self.versions = Versions(facts.versions)
        self.renewals = renewals(facts, plan.renewed, self.needs_grad)
        written = (*facts.changed, *plan.renewed, *facts.recounted)
        self.share, self._are_apart, self._look = sharing(written, len(inputs))
        # Of inputs that are changed, a backward that is differentiated again gets a copy of what they were, or anything
        # of that shape where no gradient depends on it.
        self.shared = frozenset(facts.changed) & frozenset(facts.unread_inputs) - frozenset(facts.needed_inputs)
        self.copied = frozenset(facts.changed) - self.shared
        self.unread = self.shared | {renewal.place for renewal in self.renewals if not renewal.matters}
        self.changes_inputs = bool(facts.changed or plan.renewed or facts.recounted)
        self.is_random = facts.is_random
        self._expected = plan.expected if facts.is_turned else None
        self.gpus = tuple(sorted({tensor.device.index for tensor in inputs if tensor.is_cuda}))
        self.read_inputs = facts.read_inputs
        self.needed_inputs = facts.needed_inputs
        self.leaf_hooks = LeafHooks(facts.leaf_order)
        self.saved_views: tuple[int, ...] | None = None  # among the results; None before the first call
        # The rest is wanted only by a backward that is differentiated again.
        self.other_inputs = tuple(index for index in range(len(inputs)) if index not in self.needed_inputs)
        self.pick_needed, self.pick_others = pick(self.needed_inputs), pick(self.other_inputs)
        self._set_windows(facts, inputs)
        self._strange_inputs = [index for index in facts.strange_inputs if self.needs_grad[index]]
        self._uneven_inputs = tuple(index for index in facts.uneven_inputs if index not in plan.ours)
        self._saved_positions = facts.saved_positions
        self.live, self.new_values = facts.live, tuple(zip(facts.new_positions, facts.new_inputs, strict=True))
        own = zip(facts.own_positions, facts.own_versions, strict=True)
        self.own_versions = {} if plan.renewed or facts.changed or facts.live else dict(own)
        kept = len(facts.saved_positions) + len(facts.needed_inputs)
        self.saves_something = kept > len(facts.live) or bool(facts.pieces)
        # One that all results lead to is read by every backward; of others it is asked, where PyTorch does not know it.
        self.keeps_versions = not torch_compat.SAVED_KNOW_VERSIONS and sum(facts.differentiable) > 1
        self.visible_count = self.result_count + len(self.changed)
        self.fixed = tuple(
            index
            for index in range(self.visible_count)
            if index >= self.result_count or not self.differentiable[index]
        )
        self.seen_outputs = self.outputs[: len(self.outputs) - len(plan.renewed)]
        # The numbers of the results that the outputs are, where nothing else is to be done; and whether that is all.
        only_results = not self.changes_inputs and not any(isinstance(output, ResultView) for output in self.outputs)
        self._places = [getattr(output, "index", None) for output in self.outputs] if only_results else None
        self._returns_results = self._places == list(range(self.result_count))
        self._takes_windows = takes_windows(facts.outputs)
        self.statistics = (*facts.statistics_inputs, *self.shared)
        self.partly_reached: tuple[int, ...] = ()  # of a twin: the inputs that some of its results do not lead to

    def _set_windows(self, facts: Facts, inputs: Sequence[torch.Tensor]) -> None:
        """Know which needed inputs are kept as windows on their memory: that of results is not replaced."""
        left = frozenset(facts.window_inputs).difference(facts.changed, self.plan.renewed, facts.new_inputs)
        windows = [place for place, index in enumerate(facts.needed_inputs) if index in left and inputs[index].is_leaf]
        self.windows = frozenset(windows).difference(facts.live)
        moved = (place for place in sorted(self.windows) if self.needs_grad[facts.needed_inputs[place]])
        self.moved_windows = tuple(moved)

    def _set_run(self, facts: Facts, compiled: Callable[..., Any]) -> None:
        """Know how the forward runs, and whether a backward may run without questions."""
        pieces = Pieces(facts.pieces, facts.leads)
        self.pieces = pieces if pieces.may_be_apart() else None
        self.outlines: list[Outline] | None = None  # of what is saved, once some was freed
        self.is_exact = self.pieces is not None and sum(self.needs_grad) <= MOST_ASKED
        self.wanted_gradients = torch_compat.WantedGradients()
        self.settings = torch_compat.forward_settings()
        known = known_of(compiled)
        self.looks_at_grad_mode, self.is_below_autograd = known.looks_at_grad_mode, known.is_below_autograd
        if known.lends is not None:
            known.lends(self.visible_count)
        asked = {"share": self.share, "are_apart": self._are_apart, "look": self._look}
        described(self, writes_at_end=True, read_inputs=facts.read_inputs, **asked)
        self.usuals = Usuals()
        self._bound: dict[tuple[int, ...], DifferentiatedGraph] = {}  # by the sizes of calls
        # Whether a backward that was right once has only its gradients and the interpreter to ask.
        self.may_be_usual = self.saves_something and not (self._backward_conditions or self.live)
        self.run_forward = recounting(with_arguments(compiled), facts.recounted, len(self.sizes.symbols))

    def at(self, numbers: tuple[int, ...]) -> DifferentiatedGraph:
        """The graph of the sizes of one call."""
        if not numbers:
            return self
        bound = self._bound.get(numbers)
        if bound is not None:
            return bound
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound.numbers, bound.at_hand, bound.usuals, bound._bound = numbers, {}, Usuals(), {}
        bound.outlines = None
        bound.function, bound.run_forward = partial(self.function, *numbers), partial(self.run_forward, *numbers)
        if all(type(number) is int for number in numbers):  # of others, equal ones may differ by their sign
            if len(self._bound) >= MOST_BOUND:
                self._bound.clear()
            self._bound[numbers] = bound
        return bound

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self.again.twin is not None and self.again.serves(inputs):
            twin = self.bound(self.again.twin)
            if twin is not None:
                return twin(*inputs)
        if autograd_is_watched() or (self.changes_inputs and self.share(inputs)):
            self.tell("some calls", WATCHED if autograd_is_watched() else SHARED)
            return self.plain(*self.numbers, *inputs)
        if self._uneven_inputs and self._is_told(inputs):
            self.tell("some calls", UNEVEN)
            return self.plain(*self.numbers, *inputs)
        if self.renewals and not may_be_renewed(inputs, self.renewals):
            self.tell("some calls", RENEWED)
            return self.plain(*self.numbers, *inputs)
        related = self._related(inputs) if self._strange_inputs else inputs
        self.leaf_hooks.ask(inputs)
        hooked = self.leaf_hooks.places
        results = apply_node(self, *(in_order(related, hooked) if hooked else related))
        if self._returns_results:
            return results
        if self._places is not None:
            return tuple([None if place is None else results[place] for place in self._places])
        if self.changed and not self.new_values:  # the node itself has written what it keeps
            self.changes.write_back(inputs, results[self.result_count :])
        size = self.sizes.reader(self.numbers) if self._takes_windows and self.numbers else None
        return take_outputs(self.seen_outputs, inputs, results, size)

    def _related(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The inputs as the node may know them: autograd goes through all it leads to, and uses up what they saved."""
        return [value.detach() if index in self._strange_inputs else value for index, value in enumerate(inputs)]

    def _is_told(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the user's code would notice that a backward through some of the results comes to all inputs.

        Eager does not come near the inputs that only the others were computed from. Here they get None: to a leaf that
        is nothing, but hooks are called with it, custom functions make zeros of it, and what is behind is used up.
        """
        uneven = [inputs[index] for index in self._uneven_inputs]
        if self.plan.ours:  # the backward of a twin, whose node is come to in any case: behind it None stays None
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
        key = moment, wanted
        backward = self.at_hand.get(key)
        values += [tangent for tangent in tangents if tangent is not None]
        if backward is None:
            make = partial(self._compile_backward, Moment(*moment), tangents, values, inputs, wanted)
            backward = self.find_backward(Moment(*moment), wanted, make)
        run = backward.run
        if not plain:
            if backward.graph is None:
                backward.graph, _ = self._backward_graph(Moment(*moment), tangents, inputs(), wanted)
            run = as_traced(backward.graph.forward)
        elif self.may_be_usual and takes_list(run) and (not self.pieces or self.pieces.frees_all(tangents, wanted)):
            known = after_numbers(self.numbers, run) if self.numbers else run
            all_tangents = (*tangents, *[None] * len(self.changed))
            self.usuals.note(key, all_tangents, known, self.needs_grad if wanted is None else wanted)
        if self.numbers:
            values[:0] = self.numbers  # type: ignore[assignment]
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
        hooked: bool,
    ) -> Sequence[torch.Tensor | None]:
        """The backward as a function of inputs, gradients and the ``own`` results it reads, by their numbers."""
        from bothways.grad import twins

        return twins.differentiable_backward(self, inputs, tangents, unchanged, wanted, own, hooked)

    def twin(self, inputs: Sequence[torch.Tensor]) -> DifferentiatedGraph:
        """The same graph, whose node keeps what second derivatives go through."""
        from bothways.grad import twins

        with (
            self.sizes.later(self.numbers) as conditions,
            self.as_at_first(inputs) as examples,
            generated.kept_in(self.generated),
            listening(),
        ):
            twin = twins.twin_of(self, self._captured, examples, self.sizes)
        twin.holds = self.sizes.condition(conditions)
        return twin

    def bound(self, twin: DifferentiatedGraph) -> DifferentiatedGraph | None:
        """A twin of the graph at the sizes of this call; None when it is not for those."""
        return twin.at(self.numbers) if twin.holds(*self.numbers) else None

    def find_backward(
        self, moment: Moment, of: Any, make: Callable[[], tuple[Callable[..., Any], torch.fx.GraphModule | None, Any]]
    ) -> CompiledBackward:
        """The backward that fits this call; ``make`` compiles one, and gives it with its graph and the strides of the
        gradients that it takes."""
        backward = self._backwards.fitting(self.numbers, moment, of)
        if backward is None:
            with self.sizes.later(self.numbers) as conditions, generated.kept_in(self.generated), listening():
                run, graph, strides = make()
                layouts = self.sizes.layouts(strides or ())
            holds = self.sizes.condition(conditions)
            backward = CompiledBackward(holds, layouts, moment.autocast, moment.again, of, run, graph)
            self._backwards.add(backward)
        self.at_hand[moment, of] = backward
        return backward

    def _compile_backward(
        self, moment: Moment, tangents: Tangents, values: list[torch.Tensor], inputs: Inputs, wanted: Wanted | None
    ) -> tuple[Callable[..., Any], torch.fx.GraphModule | None, Any]:
        memo = self._memo_of_backward(moment, values, wanted)
        known = recall_backward(memo, len(values), len(self.needs_grad))
        if known is not None:
            return as_traced(known), None, moment.strides
        graph, strides = self._backward_graph(moment, tangents, inputs(), wanted)
        check_takes(graph, values)
        run = self.plan.bw_compiler(graph, [*self.numbers, *values])  # type: ignore[list-item]
        note(memo, {}, run)
        return as_traced(run), graph, strides

    def _memo_of_backward(self, moment: Moment, values: list[torch.Tensor], wanted: Wanted | None) -> FactMemo | None:
        if self.plan.memo is None:
            return None
        layouts = [(value.dtype, value.shape, value.stride(), value.device) for value in values]
        state = f"{torch_compat.operation_state()}"
        return self.plan.memo.part("backward", f"{moment}", f"{layouts}", state, f"{wanted}")

    def _backward_graph(
        self, moment: Moment, tangents: Tangents, inputs: Sequence[torch.Tensor], wanted: Wanted | None
    ) -> tuple[torch.fx.GraphModule, Any]:
        joint = self.joint(moment, tangents, inputs)
        return extract(joint, self.backward_inputs(joint), joint.chosen_gradients(wanted)), joint.moment.strides

    def read_values(
        self, tangents: Tangents, inputs: Sequence[torch.Tensor], wanted: Wanted | None = None
    ) -> Collection[int]:
        """The places of what a backward for these gradients reads, of the inputs it takes and of what was saved."""
        tangents = tangents[: self.result_count]
        count = len(self.needed_inputs) + len(self._saved_positions)
        pairs = zip(self.differentiable, tangents, strict=True)
        if wanted is None and not any(moves and tangent is None for moves, tangent in pairs):
            return range(count)  # what is saved is what eager saves
        moment = Moment(strides_of(tangents), torch_compat.autocast_now(), False)
        key = self.numbers, moment, wanted
        if key not in self._read:
            # What is found out about sizes holds for those of this call, which is all that is asked.
            with self.sizes.later(self.numbers), generated.kept_in(self.generated), listening():
                self._read[key] = self._read_of_some(moment, tangents, inputs, count, wanted)
        return self._read[key]

    def _read_of_some(
        self, moment: Moment, tangents: Tangents, inputs: Sequence[torch.Tensor], count: int, wanted: Wanted | None
    ) -> Collection[int]:
        refusals: tuple[type[Exception], ...] = (NotRepeatable, Undecided, *torch_compat.fake_tensor_errors())
        try:
            joint = self.joint(moment, tangents, inputs)
            graph = extract(joint, self.backward_inputs(joint), joint.chosen_gradients(wanted))
        except refusals:  # the error of what was changed leaves
            return range(count)
        if joint.keeping.reads_outside:
            return range(count)
        takes = [node for node in graph.graph.nodes if node.op == "placeholder"][len(self.sizes.symbols) :]
        asked = asked_owners(joint, *asked_for(tangents, wanted))
        pairs = zip(takes[:count], self.backward_inputs(joint), strict=False)
        return [place for place, (node, value) in enumerate(pairs) if node.users or value in asked]

    def backward_to_copy(self, strides: Strides, inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule | None:
        """The graph of a backward, for gradients that lie like that; None unless it is all that the node's does."""
        apart = self.pieces is not None and self.pieces.results_fall_apart()
        if self.sizes or apart or self.connected is not None or self._backward_conditions or self.live:
            return None
        moment = Moment(strides, torch_compat.autocast_now(), False)
        if moment not in self._copied:
            self._copied[moment], _ = self._backward_graph(moment, (), inputs, None)
        return self._copied[moment]

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
        there = [tangent for tangent in tangents if tangent is not None]
        return backward_function(self, [tangent is not None for tangent in tangents], wanted)(*inputs, *there)

    def joint(self, moment: Moment, tangents: Tangents, inputs: Sequence[torch.Tensor]) -> Joint:
        """The trace of a backward that runs at this moment, with gradients laid out like ``tangents``."""
        for known in self.joints:
            strides = self.sizes.layouts(known.moment.strides or ())(*self.numbers)
            if known.moment._replace(strides=strides) == moment:
                if not self.sizes:  # with symbols it serves once more, for other sizes
                    self.joints.remove(known)
                return known
        symbolic = moment._replace(strides=self._symbolic_strides(tangents)) if self.sizes else moment
        with self.as_at_first(inputs) as examples:
            try:
                sizes, expected = self.sizes.specialising, self._expected
                apart = self.plan.decompositions
                joint = trace_joint(self._captured, examples, True, symbolic, sizes, expected, self.hidden, apart)
            except NotDifferentiable as error:
                raise NotRepeatable(str(error)) from error
        if joint.is_turned != (self._expected is not None):
            raise NotRepeatable("images lie in another way")
        if self.sizes and _forward_operations(joint) != self._operations:
            raise NotRepeatable("for these sizes the forward has other operations")
        return joint

    def _symbolic_strides(self, tangents: Tangents) -> Strides:
        """How gradients are laid out, in terms of the symbols."""
        return tuple(
            None if tangent is None else symbolic_strides(shape, tangent.shape, tangent.stride())
            for shape, tangent in zip(self._shapes, tangents, strict=True)
        )

    @contextmanager
    def as_at_first(self, inputs: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """The inputs as tensors to trace the forward with, in the modes in which it ran."""
        with torch.inference_mode(False), torch.enable_grad(), torch_compat.settings_of_forward(self.settings):
            pairs = itertools.zip_longest(map(torch.Tensor.detach, inputs), self._outlines)
            tensors = [tensor if outline is None else outlined(tensor, *outline) for tensor, outline in pairs]
            yield [tensor.requires_grad_(needed) for tensor, needed in zip(tensors, self.needs_grad, strict=True)]


def _is_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor wants a gradient that is no parameter."""
    return tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)


def _forward_operations(joint: Joint) -> list[Any]:
    """What the forward does, in order: saved values are known by their positions in it."""
    return [
        node.target for node in joint.recorder.graph.nodes if node in joint.forward_nodes and node.op == "call_function"
    ]


def for_all_sizes(graph: DifferentiatedGraph) -> Callable[..., Any]:
    """A graph as a function of sizes and tensors."""
    count = len(graph.sizes.symbols)

    def call(*values: Any) -> Any:
        return graph.at(values[:count])(*values[count:])

    return described(call, **vars(known_of(graph)))


def note(
    memo: FactMemo | None, facts: Any, compiled: Callable[..., Any], saved: Sequence[generated.SavedValue] = ()
) -> None:
    """Remember a compiled graph, where both it and the facts can be written down, and what it saves, for people."""
    key = known_of(compiled).key
    if memo is not None and key is not None and facts is not None:
        memo.note({"facts": facts, "program": key, "saved": [astuple(value) for value in saved]})
