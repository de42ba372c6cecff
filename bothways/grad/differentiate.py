"""A captured graph with a compiled backward: the two graphs, and the autograd node that joins them.

``differentiate`` traces and splits a graph; the result is called like the graph. The backward for each set of
results that receive gradients is traced and compiled when it first runs, and a backward that has to be
differentiable itself is differentiated by the same road.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.changed import sharing, write_back
from bothways.grad.facts import Facts, Memo, facts_of
from bothways.grad.joint import (
    IndependentResults,
    Joint,
    Moment,
    NotDifferentiable,
    Output,
    Result,
    Strides,
    trace_joint,
)
from bothways.grad.node import Unchanged, apply_node, pick
from bothways.grad.partition import NotRepeatable, extract, saved_values
from bothways.grad.recalled import Forward, Groups, recall_backward, recall_function
from bothways.grad.sizes import Sizes
from bothways.grad.usual import Usual, usual
from bothways.grad.whys import SHARED, UNEVEN, WATCHED
from bothways.runtime import generated
from bothways.runtime.listening import listening
from bothways.runtime.nodes import Reads

Compiler = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]



def differentiate(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    reads: Sequence[Reads] = (),
    expected: Sequence[torch.Tensor | None] = (),
    memo: Memo | None = None,
    sizes: Sizes | None = None,
    turns_images: bool = False,
) -> Callable[..., Any]:
    """Compile a function of tensors that returns a tuple, with its backward if the inputs need one.

    With ``sizes`` it takes symbols before the tensors, as does what comes back.
    ``reads`` tells, when a backward runs, whether the custom functions inside would still do what was traced;
    ``expected`` are tensors laid out like the outputs, where that is known. What ``memo`` remembers of this function
    is not traced or compiled again. ``turns_images`` lets convolutions have theirs as they like them best. Raises
    ``NotDifferentiable`` for what the differentiator does not express.
    """
    how = How(fw_compiler, bw_compiler, reads, memo, sizes, tuple(expected) if turns_images else None)
    match recall_function(memo, len(inputs), len(expected) or None):
        case Groups(groups):
            return _side_by_side(function, inputs, groups, how, expected)
        case Forward(facts, run):
            return _joined(function, facts, inputs, run, how)
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    try:
        joint = trace_joint(function, inputs, grad, sizes=sizes, expected=how.expected)
    except IndependentResults as found:
        if memo is not None:
            memo.note({"groups": found.groups})
        return _side_by_side(function, inputs, found.groups, how, expected)
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
    compiled = fw_compiler(graph, [*numbers, *inputs])
    if joint.updates and not has_backward and getattr(compiled, "__self__", None) is graph:
        return function  # what is changed in place, and by no kernel, is changed fastest as captured
    _note(memo, facts.to_data(), compiled)
    return _joined(function, facts, inputs, compiled, how, joint)


@dataclass(frozen=True)
class How:
    """What compiles a graph's halves, what its custom functions read, what is remembered of it, its symbols."""

    fw_compiler: Compiler
    bw_compiler: Compiler
    reads: Sequence[Reads]
    memo: Memo | None
    sizes: Sizes | None
    expected: tuple[torch.Tensor | None, ...] | None = None  # laid out like the outputs, where images may be turned


def _note(memo: Memo | None, facts: Any, compiled: Callable[..., Any]) -> None:
    """Remember a compiled graph, where both it and the facts can be written down."""
    key = getattr(compiled, "key", None)
    if memo is not None and key is not None and facts is not None:
        memo.note({"facts": facts, "program": key})


def _joined(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    how: How,
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


def check_layouts(joint: Joint, expected: Sequence[torch.Tensor | None]) -> None:
    """Raise when an operation in place, which became one out of place, made an output of another layout."""
    for output, like in zip(joint.outputs, expected, strict=False):
        if isinstance(output, Result) and like is not None:
            value = joint.results[output.index].meta["val"]
            steps = zip(value.shape, value.stride(), like.stride(), strict=True)
            if any(size > 1 and step != other for size, step, other in steps):
                raise NotDifferentiable(f"an output has strides {value.stride()} instead of {like.stride()}")


def _side_by_side(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    groups: list[list[int]],
    how: How,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    """Compile each group of outputs for itself."""

    def only(group: list[int]) -> Callable[..., Any]:
        def chosen(*values: torch.Tensor) -> tuple[Any, ...]:
            outputs = function(*values)
            return tuple(outputs[position] for position in group)

        return chosen

    parts = []
    for group in groups:
        layouts = [expected[position] for position in group] if expected else ()
        memo = None if how.memo is None else how.memo.part("outputs", repr(group))
        compiled = differentiate(
            only(group), inputs, how.fw_compiler, how.bw_compiler, how.reads, layouts, memo, how.sizes,
            how.expected is not None,
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

    def call(*values: torch.Tensor) -> Any:
        if torch_compat.in_forward_mode() or (changed and share(values)):
            return function(*values)
        if unwatched:  # the results need no gradient, whatever the inputs do
            with torch_compat.below_autograd():
                results = run(*values)
        else:
            results = run(*values)
        if only_results:
            return results
        write_back(values, changed, results[count:], facts.uncounted)
        return take_outputs(outputs, values, results)

    call.read_inputs = facts.read_inputs  # type: ignore[attr-defined]
    call.writes_at_end = True  # type: ignore[attr-defined]
    return call


def take_outputs(outputs: list[Output], inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of the original function from what the graph returned."""
    return tuple(_take(output, inputs, results) for output in outputs)


def _take(output: Output, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
    if output is None:
        return None
    return results[output.index] if isinstance(output, Result) else output.take(inputs, results)


# So many backwards are compiled for one graph; gradients of other layouts go back through plain autograd.
MOST_LAYOUTS = 8


class DifferentiatedGraph:
    """A graph whose backward is compiled."""

    writes_at_end = True  # what it changes of its inputs, so that it can fail without a trace

    def __init__(
        self,
        function: Callable[..., Any],
        facts: Facts,
        inputs: Sequence[torch.Tensor],
        compiled: Callable[..., Any],
        how: How,
        joint: Joint | None,
    ) -> None:
        self.function = function
        self._generated = generated.current()
        self._how = how
        self._forward_conditions = [read.forward for read in how.reads if read.forward is not None]
        self._backward_conditions = [read.backward for read in how.reads if read.backward is not None]
        self.differentiable = facts.differentiable
        self.needs_grad = tuple(tensor.requires_grad for tensor in inputs)
        self.outputs = facts.outputs
        self.result_count = len(facts.differentiable)
        self.changed, self.uncounted = facts.changed, facts.uncounted
        self.share = sharing(facts.changed, len(inputs))
        self.is_random = facts.is_random
        self._expected = how.expected if facts.is_turned else None
        self.gpus = tuple(sorted({tensor.device.index for tensor in inputs if tensor.is_cuda}))
        self.read_inputs = facts.read_inputs
        self.needed_inputs = facts.needed_inputs
        # The rest is wanted only by a backward that is differentiated again.
        self.other_inputs = tuple(index for index in range(len(inputs)) if index not in self.needed_inputs)
        self.pick_needed, self.pick_others = pick(self.needed_inputs), pick(self.other_inputs)
        self._strange_inputs = [index for index in facts.strange_inputs if self.needs_grad[index]]
        self._uneven_inputs = facts.uneven_inputs
        self._saved_positions = facts.saved_positions
        self.saves_something = bool(facts.saved_positions or facts.needed_inputs) or set(facts.parts) != {None}
        self.parts = facts.parts if len(set(facts.parts) - {None}) > 1 else None
        self.visible_count = self.result_count + len(self.changed)
        self.fixed = tuple(
            index
            for index in range(self.visible_count)
            if index >= self.result_count or not self.differentiable[index]
        )
        self._returns_results = not self.changed and self.outputs == [Result(i) for i in range(self.result_count)]
        self._autocast = torch_compat.autocast_now()
        self._joints = [] if joint is None else [joint]
        self._graphs: dict[Moment, torch.fx.GraphModule] = {}
        self.looks_at_grad_mode = getattr(compiled, "looks_at_grad_mode", True)
        self.is_below_autograd = getattr(compiled, "is_below_autograd", False)
        self.usual: Usual | None = None
        self._usuals: dict[tuple[Any, Any], Usual | None] = {}
        # Whether a backward that was right once has only its gradients and the interpreter to ask.
        self._may_be_usual = self.saves_something and self.parts is None and not self._backward_conditions
        self.run_forward = with_arguments(compiled)
        self._backwards: dict[tuple[Any, Any], Callable[..., Any]] = {}
        self._differentiable_backwards: dict[tuple[Moment, bool, tuple[bool, ...]], Callable[..., Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if autograd_is_watched() or (self.changed and self.share(inputs)):
            self.tell("some calls", WATCHED if autograd_is_watched() else SHARED)
            return self.function(*inputs)
        if self._uneven_inputs and self._is_told(inputs):
            self.tell("some calls", UNEVEN)
            return self.function(*inputs)
        results = apply_node(self, *(self._related(inputs) if self._strange_inputs else inputs))
        if self._returns_results:
            return results
        write_back(inputs, self.changed, results[self.result_count :], self.uncounted)
        return take_outputs(self.outputs, inputs, results)

    def _related(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The inputs as the node may know them: autograd goes through all it leads to, and uses up what they saved."""
        return [value.detach() if index in self._strange_inputs else value for index, value in enumerate(inputs)]

    def _is_told(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether somebody would notice that a backward through some of the results comes to all inputs.

        Eager does not come near the inputs that only the others were computed from. Here they get None: to a leaf that
        is nothing, but hooks are called with it, custom functions make zeros of it, and what is behind is used up.
        """
        uneven = [inputs[index] for index in self._uneven_inputs]
        return any(not tensor.is_leaf or tensor._backward_hooks for tensor in uneven)

    # What the node calls.

    def tell(self, name: str, reason: str) -> None:
        """Say that something runs as it was captured, with PyTorch's autograd, and why."""
        generated.tell(self._generated, name, reason)

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        inputs: Callable[[], Sequence[torch.Tensor]],
        plain: bool,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients from ``values``, what was saved; the list is used up, so that memory is freed early.

        ``inputs`` gives all inputs of the forward, for a backward that has to be traced first. Tangents that are not
        ``plain`` memory go through the graph as it was traced.
        """
        moment = strides_of(tangents), torch_compat.autocast_now()  # equal to the Moment, and made faster
        values += [tangent for tangent in tangents if tangent is not None]
        run = self._backwards.get(moment)
        if run is None:
            if len(self._backwards) >= MOST_LAYOUTS:
                raise NotRepeatable("the gradients are laid out in another way each time")
            run = self._backwards[moment] = self._compile_backward(Moment(*moment), values, inputs())
        if not plain:
            run = as_traced(self._backward_graph(Moment(*moment), inputs()).forward)
        elif takes_list(run) and self._may_be_usual:
            if moment not in self._usuals:
                self._usuals[moment] = usual((*tangents, *[None] * len(self.changed)), run)
            self.usual = self._usuals[moment]
        gradients: Sequence[torch.Tensor | None] = run(values) if takes_list(run) else run(*values)
        return gradients

    def run_differentiable_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], unchanged: Unchanged
    ) -> tuple[torch.Tensor | None, ...]:
        """The backward as a function of inputs and gradients that can be differentiated again."""
        moment = Moment(strides_of(tangents), torch_compat.autocast_now())
        values = [*inputs, *(tangent for tangent in tangents if tangent is not None)]
        key = moment, torch.is_grad_enabled(), tuple(value.requires_grad for value in values)
        run = self._differentiable_backwards.get(key)
        if run is None:
            run = self._differentiable_backwards[key] = self._compile_differentiable(moment, values)
        unchanged(_read_inputs(run, len(inputs)))
        return tuple(run(*values))

    def _compile_backward(
        self, moment: Moment, values: list[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        memo = self._memo_of_backward(moment, values)
        with generated.kept_in(self._generated), listening():
            run = recall_backward(memo, len(values), len(inputs))
            if run is None:
                run = self._how.bw_compiler(self._backward_graph(moment, inputs), list(values))
                _note(memo, {}, run)
        return as_traced(run)

    def _memo_of_backward(self, moment: Moment, values: list[torch.Tensor]) -> Memo | None:
        if self._how.memo is None:
            return None
        layouts = [(value.dtype, value.shape, value.stride(), value.device) for value in values]
        return self._how.memo.part("backward", f"{moment}", f"{layouts}", f"{torch_compat.operation_state()}")

    def _backward_graph(self, moment: Moment, inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        if moment not in self._graphs:
            joint = self._joint(moment, inputs)
            self._graphs[moment] = extract(joint, self._backward_inputs(joint), joint.gradients)
        return self._graphs[moment]

    def _backward_inputs(self, joint: Joint) -> list[torch.fx.Node]:
        """What a backward takes: inputs, what was saved, gradients."""
        order = list(joint.recorder.graph.nodes)
        saved = [order[position + len(joint.tangents)] for position in self._saved_positions]
        return [*(joint.primals[index] for index in self.needed_inputs), *saved, *joint.tangents]

    @property
    def is_current(self) -> bool:
        """Whether the backward of every custom function inside would still do what was traced."""
        return not self._backward_conditions or all(holds() for holds in self._backward_conditions)

    def run_plain_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], unchanged: Unchanged
    ) -> tuple[torch.Tensor | None, ...]:
        """The backward as the user's Python, after the forward was run again."""
        unchanged(range(len(inputs)))
        if not all(holds() for holds in self._forward_conditions):
            raise RuntimeError(
                "a global that the forward and the backward of a custom autograd.Function read was changed between "
                "them; keep what the backward needs on ctx"
            )
        given = [tangent for tangent in tangents if tangent is not None]
        return self._backward_function(strides_of(tangents))(*inputs, *given)

    def _compile_differentiable(self, moment: Moment, values: list[torch.Tensor]) -> Callable[..., Any]:
        assert moment.strides is not None
        backward = self._backward_function(moment.strides)
        try:
            if len(self._differentiable_backwards) >= MOST_LAYOUTS:
                return backward
            with listening():
                return differentiate(backward, values, self._how.fw_compiler, self._how.bw_compiler, self._how.reads)
        except NotDifferentiable as error:
            self.tell("second derivative", str(error))
            return backward

    def _backward_function(self, strides: Strides) -> Callable[..., tuple[torch.Tensor | None, ...]]:
        """The backward as a function of inputs and gradients, by PyTorch's autograd."""
        count = len(self.needs_grad)

        def backward(*everything: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            inputs, tangents = everything[:count], everything[count:]
            again = torch.is_grad_enabled()
            with torch.enable_grad(), torch_compat.autocast_as(self._autocast):
                leaves = [
                    _connected(value) if needed else value
                    for value, needed in zip(inputs, self.needs_grad, strict=True)
                ]
                outputs = self.function(*leaves)
            results = results_of(self.outputs, outputs)
            roots = [result for result, stride in zip(results, strides, strict=True) if stride is not None]
            sources = [leaf for leaf, needed in zip(leaves, self.needs_grad, strict=True) if needed]
            found = iter(torch.autograd.grad(roots, sources, tangents, allow_unused=True, create_graph=again))
            return tuple(next(found) if needed else None for needed in self.needs_grad)

        return backward

    def _joint(self, moment: Moment, inputs: Sequence[torch.Tensor]) -> Joint:
        for known in self._joints:
            if known.moment == moment:
                self._joints.remove(known)
                return known
        with torch.inference_mode(False), torch.enable_grad(), torch_compat.autocast_as(self._autocast):
            examples = [
                tensor.detach().requires_grad_(needed) for tensor, needed in zip(inputs, self.needs_grad, strict=True)
            ]
            try:
                joint = trace_joint(self.function, examples, True, moment, expected=self._expected)
            except NotDifferentiable as error:
                raise NotRepeatable(str(error)) from error
            if joint.is_turned != (self._expected is not None):
                raise NotRepeatable("images lie in another way")
            return joint


def _read_inputs(run: Callable[..., Any], count: int) -> Iterable[int]:
    """Which of the first ``count`` inputs a differentiated function reads."""
    read: Sequence[int] = getattr(run, "read_inputs", range(count))
    return [index for index in read if index < count]


def takes_list(run: Callable[..., Any]) -> bool:
    """Whether a compiled graph takes its inputs as one list that it may empty, so that memory is freed early."""
    return bool(getattr(run, "_boxed_call", False))


def with_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph as a function of its inputs."""
    return (lambda *values: run(list(values))) if takes_list(run) else run


def as_traced(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph under the autocast of now: it holds the casts already, and is not cast again."""
    if not torch_compat.is_any_autocast_enabled():
        return run

    @functools.wraps(run)
    def without_autocast(*values: Any) -> Any:
        with torch_compat.without_autocast():
            return run(*values)

    return without_autocast


def autograd_is_watched() -> bool:
    """Whether somebody looks at each of autograd's operations, or at what each saves: these have to be its own.

    PyTorch's own saved-tensor hooks, for activation checkpointing or to move memory, do not care what is saved.
    """
    if torch.is_anomaly_enabled() or torch_compat.in_forward_mode():
        return True
    hooks = torch_compat.top_saved_tensors_hooks()
    return hooks is not None and not (getattr(hooks[0], "__module__", None) or "").startswith("torch.")


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
