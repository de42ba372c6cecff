"""A captured graph with a compiled backward: the two graphs, and the autograd node that joins them.

``differentiate`` traces and splits a graph; the result is called like the graph. A backward that has to be
differentiable itself is differentiated by the same road, and a graph with fixed sizes goes it without symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.again import chosen
from bothways.grad.differentiated import DifferentiatedGraph, for_all_sizes, note
from bothways.grad.halves.facts import FactMemo, Facts, facts_of
from bothways.grad.halves.partition import extract, saved_values, windows_beside
from bothways.grad.halves.plan import Compiler, GradPlan
from bothways.grad.halves.recalled import Changing, Forward, Groups, recall_function
from bothways.grad.nodes.changed import Changes, Versions, recounting, sharing
from bothways.grad.nodes.renewed import Renewing, prepare, renewed_inputs
from bothways.grad.nodes.running import as_traced, autograd_is_watched, released, with_arguments
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.results import has_known_history
from bothways.grad.tracing.sizes import FIXED, Sizes
from bothways.grad.tracing.trace import Decompositions
from bothways.grad.tracing.traced import (
    ChangesGradient,
    ChangesInPlace,
    IndependentResults,
    Joint,
    NotDifferentiable,
    Result,
    check_layouts,
    take_outputs,
    takes_windows,
    taking_results,
)
from bothways.node_facts import note_writes
from bothways.record import generated
from bothways.runtime.compiled_graph import described, known_of
from bothways.runtime.nodes import Reads


def differentiate(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    fw_compiler: Compiler,
    bw_compiler: Compiler,
    reads: Sequence[Reads] = (),
    expected: Sequence[torch.Tensor | None] = (),
    memo: FactMemo | None = None,
    sizes: Sizes = FIXED,
    turns_images: bool = False,
    ours: frozenset[int] = frozenset(),
    decompositions: Decompositions | None = None,
    kernels: bool = True,
    goes_back: bool = False,
    keeps_all: bool = False,
) -> Callable[..., Any]:
    """Compile a function of tensors that returns a tuple, with its backward if the inputs need one.

    It takes the symbols of ``sizes`` before the tensors, as does what comes back.
    ``reads`` tells, when a backward runs, whether the custom functions inside would still do what was traced;
    ``expected`` are tensors laid out like the outputs, where that is known. What ``memo`` remembers of this function
    is not traced or compiled again. ``turns_images`` lets convolutions have theirs as they like them best; ``ours`` are
    inputs that a node of ours gave and the user never sees. Operations in ``decompositions`` are taken apart. Without
    ``kernels`` each operation of the halves costs a call: nothing is computed again, and a function that only changes
    inputs raises ``ChangesInPlace``. A function that ``goes_back`` has backwards of its own inside, and one
    that ``keeps_all`` saves what eager saves. Raises ``NotDifferentiable`` for what the differentiator does not
    express.
    """
    if torch_compat.records_gradients() and not all(map(has_known_history, inputs)):
        raise NotDifferentiable("autograd does not let an input be used any more")
    images = tuple(expected) if turns_images else None
    plan = GradPlan(
        fw_compiler, bw_compiler, reads, memo, sizes, images, ours,
        decompositions=decompositions, kernels=kernels, goes_back=goes_back, keeps_all=keeps_all,
    )  # fmt: skip
    return _differentiated(function, inputs, plan, expected)


def _differentiated(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    plan: GradPlan,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    memo, sizes = plan.memo, plan.sizes
    match recall_function(memo, len(inputs), len(expected) or None):
        case Groups(groups):
            return _side_by_side(function, inputs, groups, plan, expected)
        case Changing(places):
            return _renewing(function, inputs, places, plan, expected)
        case Forward(facts, run, kept):
            generated.keep_saved(kept)
            return _joined(function, facts, inputs, run, plan)
    grad = torch_compat.records_gradients() and any(tensor.requires_grad for tensor in inputs)
    try:
        joint = trace_joint(
            function, inputs, grad, sizes=sizes, expected=plan.expected, decompositions=plan.decompositions
        )
    except IndependentResults as independent:
        if plan.renewed:
            raise NotDifferentiable("independent results, one of which is an input that is changed") from independent
        if memo is not None:
            memo.note({"groups": independent.groups})
        return _side_by_side(function, inputs, independent.groups, plan, expected)
    except ChangesGradient:
        if not grad or plan.renewed:
            raise
        places = renewed_inputs(function, inputs, sizes)
        if memo is not None:
            memo.note({"renewed": places})
        return _renewing(function, inputs, places, plan, expected)
    check_layouts(joint, expected)
    has_backward = grad and any(joint.differentiable)
    if joint.updates and not has_backward and not plan.kernels:
        raise ChangesInPlace("what it changes is changed in place by ATen")
    saved = saved_values(joint, recompute=plan.kernels and not plan.keeps_all) if has_backward else ()
    windows = windows_beside(joint, [tensor.is_leaf for tensor in inputs]) if has_backward else ()
    passed = (*saved, *windows)
    graph = extract(joint, joint.primals, [*joint.results, *joint.updates.values(), *passed], joint.kept_nodes)
    if not has_backward:
        _note_updates(graph, joint, sizes)
    facts = facts_of(joint, graph, passed, has_backward)
    if plan.renewed:
        prepare(joint, facts, graph.graph, plan.renewed, [tensor.requires_grad for tensor in inputs])
    compiled = plan.fw_compiler(graph, [*sizes.now, *inputs])
    if joint.updates and not has_backward and getattr(compiled, "__self__", None) is graph:
        return function  # what is changed in place, and by no kernel, is changed fastest as captured
    kept = generated.saved_of(saved, [joint.primals[index] for index in facts.needed_inputs] if has_backward else ())
    generated.keep_saved(kept)
    note(memo, facts.to_data(), compiled, kept)
    return _joined(function, facts, inputs, compiled, plan, joint)


def _note_updates(graph: torch.fx.GraphModule, joint: Joint, sizes: Sizes) -> None:
    """A compiler may write these results straight into the inputs they are for, and return those."""
    updates = enumerate(joint.updates)
    note_writes(graph, {len(joint.results) + number: len(sizes.now) + index for number, index in updates})


def _renewing(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    places: tuple[int, ...],
    plan: GradPlan,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    """Compile a function that changes inputs where autograd looks."""
    layouts = [*expected, *(inputs[place].detach() for place in places)] if expected else ()
    memo = None if plan.memo is None else plan.memo.part("renewed", repr(places))
    images = None if plan.expected is None else tuple(layouts)
    skipped = len(plan.sizes.symbols)
    plan = replace(plan, memo=memo, expected=images, renewed=places, plain=function)
    return _differentiated(Renewing(function, places, skipped), inputs, plan, layouts)


def _joined(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    plan: GradPlan,
    joint: Joint | None = None,
) -> Callable[..., Any]:
    """A compiled forward as a function like the original; ``joint`` is its trace, where there was one."""
    compiled = as_traced(compiled)
    if not facts.has_backward:
        return _inference(function, facts, inputs, compiled, plan)
    graph = DifferentiatedGraph(function, facts, inputs, compiled, plan, joint)
    return for_all_sizes(graph) if plan.sizes else graph


def _side_by_side(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    groups: list[list[int]],
    plan: GradPlan,
    expected: Sequence[torch.Tensor | None],
) -> Callable[..., Any]:
    """Compile each group of outputs for itself."""
    parts = []
    for group in groups:
        layouts = [expected[position] for position in group] if expected else ()
        memo = None if plan.memo is None else plan.memo.part("outputs", repr(group))
        part = chosen(function, group)
        compiled = differentiate(
            part, inputs, plan.fw_compiler, plan.bw_compiler, plan.reads, layouts, memo, plan.sizes,
            plan.expected is not None, plan.ours, plan.decompositions, plan.kernels, plan.goes_back,
            plan.keeps_all,
        )  # fmt: skip
        parts.append((group, compiled))

    def call(*values: torch.Tensor) -> tuple[Any, ...]:
        if autograd_is_watched():  # each part would run all of it
            return tuple(function(*values))
        outputs: dict[int, Any] = {}
        for group, run in parts:
            outputs.update(zip(group, run(*values), strict=True))
        return tuple(outputs[position] for position in range(len(outputs)))

    return call


def _inference(
    function: Callable[..., Any],
    facts: Facts,
    inputs: Sequence[torch.Tensor],
    compiled: Callable[..., Any],
    plan: GradPlan,
) -> Callable[..., Any]:
    """A graph without a backward, or with all of it inside, where anomaly mode and hooks look at it."""
    sizes, unwatched = plan.sizes, torch_compat.records_gradients() and any(tensor.requires_grad for tensor in inputs)
    is_watched = autograd_is_watched if plan.goes_back or unwatched else torch_compat.in_forward_mode
    run = recounting(with_arguments(compiled), facts.recounted, len(sizes.symbols))
    outputs, changed, count = facts.outputs, facts.changed, len(facts.differentiable)
    written, known = (*changed, *facts.recounted), known_of(compiled)
    share, are_apart, look = sharing(written, len(inputs))
    changes, versions = Changes(changed, facts.counts), Versions(facts.versions)
    are_all = outputs == [Result(index) for index in range(count)]
    only_results = not changed and are_all
    skipped, takes, take_results = len(sizes.symbols), bool(sizes) and takes_windows(outputs), taking_results(outputs)
    refused: Sequence[int] | None = None
    spares, leaves_out, takes_together = known.spares, known.leaves_out, known.takes_together and not facts.recounted
    at_once = None
    if leaves_out is not None and changed and take_results is not None:
        leaves_out(count, [skipped + place for place in changed])
        launch = _launch_of(compiled, facts) if takes_together and look is not None else None
        take = None if are_all else take_results
        at_once = launch and _at_once(launch, versions, take, unwatched, lambda: refused == () and not is_watched())
    def call(*values: Any, together: tuple[Any, ...] | None = None, seen: int = 0) -> Any:
        """Of numbers and tensors; the latter may come ``together``, and ``seen`` by whoever has looked at them."""
        nonlocal refused
        tensors = together or (() if only_results and not written else values[skipped:])
        if together is not None and not takes_together:
            values, together = values + together, None
        if is_watched() or (written and not seen and share(tensors)):
            if spares is not None:
                spares.clear()
            return function(*values, *(together or ()))
        options = {} if together is None else {"together": together, "seen": seen}
        with torch_compat.below_autograd() if unwatched else nullcontext():  # results need no gradient
            results = run(*values, **options)
        if refused != ():
            results, refused = released(results, facts.views, refused)
        if versions.others != []:
            versions.set(results)
        if only_results:
            return results
        changes.write_back(tensors, results[count:])
        if take_results is not None:
            return take_results(results)
        return take_outputs(outputs, tensors, results, sizes.reader(values[:skipped]) if takes else None)

    return described(
        call, read_inputs=facts.read_inputs, writes_at_end=True, share=share, are_apart=are_apart, look=look,
        takes_together=look is not None, spares=spares, at_once=at_once)  # fmt: skip


def _launch_of(compiled: Callable[..., Any], facts: Facts) -> Callable[..., Any] | None:
    """What launches all of a graph at once, told what it has to count; None where there is none, or a function of
    the user's stands around it, which does something else as well."""
    known = known_of(compiled)
    if known.counts is None or hasattr(compiled, "__wrapped__"):
        return None
    known.counts({place: number for place, number in zip(facts.changed, facts.counts, strict=True) if number})
    return known.at_once


def _at_once(
    launch: Callable[..., Any],
    versions: Versions,
    take: Callable[[Any], Any] | None,
    unwatched: bool,
    may_launch: Callable[[], bool],
) -> Callable[[tuple[Any, ...], tuple[Any, ...]], Any]:
    """A graph without a backward where one launch does it all: changes are counted, and inputs looked at, with that.
    ``may_launch``: whether a call was made that has shown which results are to be let go of as views, and
    autograd is not watched."""

    def at_once(numbers: tuple[Any, ...], tensors: tuple[Any, ...]) -> Any:
        if not may_launch():
            return None
        if unwatched:
            with torch_compat.below_autograd():
                results = launch(numbers, tensors)
        else:
            results = launch(numbers, tensors)
        if results is None:
            return None
        if versions.others != []:
            versions.set(results)
        return results if take is None else take(results)

    return at_once
