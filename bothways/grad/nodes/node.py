"""The autograd node that stands for a whole compiled graph: what it saves, and how its backward runs.

Every call of a compiled function in training goes through here, so what can be known beforehand is worked out by
the graph and only looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

import torch

from bothways import torch_compat
from bothways.grad.halves.partition import NotRepeatable
from bothways.grad.halves.pieces import Outline, Pieces
from bothways.grad.nodes.changed import Changes, Versions
from bothways.grad.nodes.renewed import Renewal
from bothways.grad.nodes.result_hooks import register_hook_dict
from bothways.grad.nodes.saved import Inputs as SavedInputs
from bothways.grad.nodes.saved import Saved, check_unchanged, saved_values, versions_of
from bothways.grad.nodes.usual import UsualBackward, Usuals
from bothways.grad.nodes.windows import behind_windows, kept_windows
from bothways.grad.tracing.leaf_order import LeafHooks

Gradients = Sequence[torch.Tensor | None]

_ALIAS = torch.ops.aten.alias.default
_LEAF = "_bothways_leaf"

# Called with the inputs that are read once more; raises when one of them was changed since the forward.
Unchanged = Callable[[Iterable[int]], None]


# Results by their numbers, with the versions they had.
Own = Mapping[int, tuple[torch.Tensor, int]]

# Takes some of the inputs.
Pick = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]


def pick(places: Sequence[int]) -> Pick:
    """What takes the items at these places out of a tuple, without a line of Python where there are any."""
    first, count = (places[0], len(places)) if places else (0, 0)
    if list(places) == list(range(first, first + count)):
        return itemgetter(slice(first, first + count))
    return itemgetter(*places)


class Graph(Protocol):
    """What the node needs of a differentiated graph."""

    is_random: bool
    gpus: tuple[int, ...]
    looks_at_grad_mode: bool
    saves_something: bool
    keeps_versions: bool
    pieces: Pieces | None
    outlines: list[Outline] | None
    changed: tuple[int, ...]
    changes: Changes
    versions: Versions
    live: tuple[int, ...]
    own_versions: dict[int, int]
    new_values: tuple[tuple[int, int], ...]
    copied: frozenset[int]
    shared: frozenset[int]
    renewals: Sequence[Renewal]
    saved_views: tuple[int, ...] | None
    leaf_hooks: LeafHooks
    connected: tuple[int, ...] | None
    is_asked: bool
    is_exact: bool
    wanted_gradients: torch_compat.WantedGradients
    needs_grad: tuple[bool, ...]
    needed_inputs: tuple[int, ...]
    windows: frozenset[int]
    moved_windows: tuple[int, ...]
    other_inputs: tuple[int, ...]
    result_count: int
    visible_count: int
    fixed: tuple[int, ...]
    unread: frozenset[int]
    pick_needed: Pick
    pick_others: Pick
    usuals: Usuals
    is_below_autograd: bool
    run_forward: Callable[..., Sequence[Any]]

    @property
    def is_current(self) -> bool: ...

    def tell(self, name: str, reason: str) -> None: ...

    def read_values(
        self, tangents: Gradients, inputs: Sequence[torch.Tensor], wanted: tuple[bool, ...] | None = None
    ) -> Collection[int]: ...

    def run_backward(
        self,
        values: list[torch.Tensor],
        tangents: Gradients,
        inputs: Callable[[], Sequence[torch.Tensor]],
        plain: bool,
        wanted: tuple[bool, ...] | None,
    ) -> Gradients: ...

    def run_connected_backward(
        self,
        values: list[torch.Tensor],
        tangents: Gradients,
        inputs: Callable[[], Sequence[torch.Tensor]],
        wanted: tuple[bool, ...],
        plain: bool,
    ) -> Gradients: ...

    def run_differentiable_backward(
        self,
        inputs: Sequence[torch.Tensor],
        tangents: Gradients,
        unchanged: Unchanged,
        wanted: tuple[bool, ...],
        own: Own,
        hooked: bool,
    ) -> Gradients: ...

    def run_plain_backward(
        self, inputs: Sequence[torch.Tensor], tangents: Gradients, unchanged: Unchanged, wanted: tuple[bool, ...]
    ) -> Gradients: ...


class CompiledNode(torch.autograd.Function):
    """One node of the autograd graph for a whole compiled graph."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, *inputs: torch.Tensor) -> Any:
        # What ``set_materialize_grads``, ``save_for_backward`` and ``mark_non_differentiable`` would set.
        ctx.graph, ctx.materialize_grads = graph, False
        if graph.leaf_hooks.places:
            inputs = _behind(inputs)
        if graph.is_random:
            ctx.random_states = random_states(graph.gpus)
        if not graph.looks_at_grad_mode:
            results = graph.run_forward(*inputs)
        elif not graph.is_below_autograd:
            results = _run_below_autograd(graph, inputs)
        else:
            results = _run_with_grad_mode(graph, inputs)
        if graph.versions.others != []:
            graph.versions.set(results)
        if graph.saved_views != ():
            results = _without_views(graph, results)
        count = graph.visible_count
        kept: Sequence[torch.Tensor] = inputs
        if graph.copied or graph.shared:
            kept = tuple([
                value.clone() if index in graph.copied else value.detach() if index in graph.shared else value
                for index, value in enumerate(inputs)
            ])  # fmt: skip
        if graph.renewals:
            kept, results = _renewed(ctx, graph, kept, inputs, results)
        if graph.other_inputs:
            # Changing one of these is no error until a backward has to be differentiated again.
            ctx.others = others = graph.pick_others(kept)
            ctx.versions = versions_of(others)
        visible = tuple(results[:count])
        for value in visible:
            if value._is_view():
                # To autograd a result is no view, whatever buffer inside the graph it is a window on.
                visible = tuple([value.detach() if value._is_view() else value for value in visible])
                break
        needed = graph.pick_needed(kept)
        if graph.windows:
            ctx.behind_windows = [needed[place] for place in graph.moved_windows]
            needed = kept_windows(needed, graph.windows)
        if graph.connected is None:
            ctx.to_save = needed + tuple(results[count:])
        else:
            apart = _apart((*visible, *results[count:]), kept)  # what has no history may lie where a result does
            visible = apart[:count]
            ctx.to_save = (*needed, *[visible[index] for index in graph.connected], *apart[count:])
        if graph.live or graph.new_values:
            _keep_outside(ctx, graph, inputs, results)
        if graph.keeps_versions:
            ctx.saved_versions = versions_of(ctx.to_save)
        if graph.fixed:
            ctx.non_differentiable = tuple([visible[index] for index in graph.fixed])
        return visible

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """Nodes of other graphs are others to the capture of a whole backward. Graphs of one call share the rest.

        The engine tells nodes apart by the first number alone; others would be sizes, which may change. One that was
        freed raises here, where nothing was handed over yet: PyTorch's engine then runs it, or refuses it.
        """
        torch_compat.check_not_freed(ctx)
        return (ctx.graph.wanted_gradients.number,)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        graph: Graph = ctx.graph
        usuals = graph.usuals.newest
        wanted = _wanted(ctx, graph) if usuals and graph.is_asked else None
        for usual in usuals:
            if (wanted is not None and wanted != usual.wanted) or not usual.holds(*tangents):
                continue
            if usual.moving is not None:
                gradients = _differentiable(ctx, graph, usual, tangents)
                if gradients is not None:
                    return None, *gradients
                break
            try:
                values = [*ctx.saved_tensors, *[tangent for tangent in tangents if tangent is not None]]
            except RuntimeError:  # something was changed, or freed: whether that matters is asked behind this handler,
                break  # as an error that is raised in it would have this one as its context
            # What was saved is in this list and nowhere else, unless the graph is retained: operations free it as
            # they go, as eager's do.
            ctx.maybe_clear_saved_tensors()
            return None, *usual.run(values)
        if not torch_compat.function_mode_depth():
            return CompiledNode.run_backward(ctx, *tangents)
        with torch_compat.without_function_modes():  # eager's backward is in C++, where no mode sees it
            return CompiledNode.run_backward(ctx, *tangents)

    @staticmethod
    def run_backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        graph: Graph = ctx.graph
        # A node that saved nothing can be gone through any number of times, in eager as well.
        values: list[torch.Tensor] = []
        refusal = None
        received, plain, current = _received(graph, tangents[: graph.result_count])
        is_compiled = current and not torch.is_grad_enabled()
        wanted = _wanted(ctx, graph) if graph.is_asked else None
        if graph.saves_something:
            # Where the forward runs again, it reads all that was saved.
            traced = partial(_traced_inputs, ctx, graph) if is_compiled else None
            (values, refusal, *_), wanted = _opened(ctx, graph, tangents, traced, wanted)
        add_live(values, ctx, graph)
        count = len(graph.needed_inputs)
        whole = behind_windows(values[:count], graph.moved_windows, ctx.behind_windows)
        inputs = partial(_all_inputs, ctx, graph, whole)
        if is_compiled:
            torch_compat.release_saved_tensors(ctx)  # the list alone has them, as above
            try:
                return None, *graph.run_backward(values, received, inputs, plain, _some(graph, wanted))
            except NotRepeatable as error:  # the other way runs the whole forward again, with the same random numbers
                reason = str(error)
            if refusal is not None:
                raise refusal
            graph.tell("backward", reason)
        values[:count] = whole
        if wanted is None:
            wanted = graph.wanted_gradients.of(ctx)
        if not any(wanted):
            return None, *(None for _ in wanted)
        if graph.connected is not None and torch.is_grad_enabled() and graph.is_current:
            for place, number in enumerate(graph.connected, count):
                if number in ctx.first_results:
                    values[place], version = ctx.first_results[number]
                    check_unchanged(values[place], version)
            try:
                return None, *graph.run_connected_backward(values, received, inputs, wanted, plain)
            except NotRepeatable:
                pass
        run = graph.run_plain_backward
        if current:
            node = getattr(ctx, "node", ctx)  # of which a captured backward has a stand-in
            own = {v.output_nr: (v, v._version) for v in values if v.grad_fn is node}
            run = partial(graph.run_differentiable_backward, own=own, hooked=node.is_hooked)
        unchanged = partial(_check_others, ctx, graph)
        if ctx.random_states is None:
            return None, *run(inputs(), received, unchanged, wanted)
        with torch.random.fork_rng(devices=graph.gpus):
            set_random_states(graph.gpus, ctx.random_states)
            return None, *run(inputs(), received, unchanged, wanted)


def _wanted(ctx: Any, graph: Graph) -> tuple[bool, ...]:
    """Which gradients the engine wants. Of a backward that frees nothing, after others that have freed nothing, it does
    no harm to give it some of leaves that it does not want."""
    is_exact = graph.is_exact and (ctx.used or not torch_compat.graph_is_retained())
    return graph.wanted_gradients.of(ctx, is_exact)


def _some(graph: Graph, wanted: tuple[bool, ...] | None) -> tuple[bool, ...] | None:
    """The wanted gradients, None for all of them."""
    return None if wanted == graph.needs_grad else wanted


def _opened(
    ctx: Any, graph: Graph, tangents: Gradients, inputs: SavedInputs | None, wanted: tuple[bool, ...] | None
) -> tuple[Saved, tuple[bool, ...] | None]:
    """What was saved, and the gradients that are wanted: exactly those where what was saved is not as it was."""
    try:
        return saved_values(ctx, graph, tangents, inputs, _some(graph, wanted)), wanted
    except RuntimeError:
        exactly = graph.wanted_gradients.of(ctx, exact=True) if wanted is not None and graph.is_exact else wanted
        if exactly == wanted:
            raise
    return saved_values(ctx, graph, tangents, inputs, _some(graph, exactly)), exactly


def _differentiable(ctx: Any, graph: Graph, usual: UsualBackward, tangents: Gradients) -> Gradients | None:
    """The gradients of a usual backward that is differentiated in turn; None where there is something to ask."""
    if ctx.used or ctx.kept is not None or ctx.first_results or not torch_compat.graph_is_retained():
        return None
    try:
        values = list(ctx.saved_tensors)
    except RuntimeError:
        return None
    count = len(graph.needed_inputs)
    values[:count] = behind_windows(values[:count], graph.moved_windows, ctx.behind_windows)
    values += [tangent for tangent in tangents if tangent is not None]
    if tuple([value.requires_grad for value in values]) != usual.moving:
        return None
    return usual.run(values)


def _traced_inputs(ctx: Any, graph: Graph, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs to trace the forward with, from what was saved."""
    values = list(saved)
    add_live(values, ctx, graph)
    return _all_inputs(ctx, graph, values[: len(graph.needed_inputs)])


def _all_inputs(ctx: Any, graph: Graph, needed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    by_place = dict(zip(graph.needed_inputs, needed, strict=True))
    by_place.update(zip(graph.other_inputs, ctx.others, strict=True))
    return [by_place[index] for index in range(len(by_place))]


def _received(graph: Graph, tangents: Gradients) -> tuple[Gradients, bool, bool]:
    """Tangents as kernels read them, whether all have plain memory, and whether compiled backwards may take them."""
    if all(tangent is None or torch_compat.has_plain_memory(tangent) for tangent in tangents):
        return tangents, True, graph.is_current
    resolved = tuple(None if tangent is None else torch_compat.resolved(tangent) for tangent in tangents)
    left = [tangent for tangent in resolved if tangent is not None and not torch_compat.has_plain_memory(tangent)]
    # What is sparse is for autograd's own formulas; kernels do not know what is batched, but operations do.
    taken = not left or (not torch.is_grad_enabled() and all(map(torch_compat.is_batched, left)))
    return resolved, not left, graph.is_current and taken


def _check_others(ctx: Any, graph: Graph, read: Iterable[int]) -> None:
    """Refuse what eager would: inputs that the whole forward reads again, and that were changed since."""
    for index, tensor, version in zip(graph.other_inputs, ctx.others, ctx.versions, strict=True):
        if index in read and index not in graph.unread and version is not None:
            check_unchanged(tensor, version)
    for tensor, version in ctx.live:  # a forward that runs again would read what they are now, too
        check_unchanged(tensor, version)


def in_order(inputs: Sequence[torch.Tensor], places: Sequence[int]) -> list[torch.Tensor]:
    """The inputs, some as tensors with a node of their own: the engine goes through the youngest first, so it comes to
    the leaves behind them in the order of ``places``, which their hooks tell. The leaves are attributes of those."""
    values = list(inputs)
    for place in reversed(places):
        leaf = values[place]
        values[place] = _ALIAS(leaf)
        setattr(values[place], _LEAF, leaf)
    return values


def _behind(inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The inputs, with the leaves again that ``in_order`` has put tensors in front of: none, if another thread has seen
    the first hooks since this call has asked. Leaves may be views, so their bases would not tell."""
    return tuple([getattr(value, _LEAF, value) for value in inputs])


def _without_views(graph: Graph, results: Sequence[Any]) -> Sequence[Any]:
    """The results, what is saved of them as tensors that autograd does not know as views of others: it would refuse
    to give back one whose memory was changed in words of its own. Which are views is so in every call."""
    if graph.saved_views is None:
        saved = range(graph.visible_count, len(results))
        graph.saved_views = tuple([place for place in saved if results[place]._is_view()])
    views = graph.saved_views
    return [value.detach() if place in views else value for place, value in enumerate(results)] if views else results


def _renewed(
    ctx: Any,
    graph: Graph,
    kept: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    results: Sequence[Any],
) -> tuple[tuple[torch.Tensor, ...], list[Any]]:
    """Write new values into the inputs that get another history, which are results of the node from now on.

    What they were is kept for a backward that is differentiated again: as a copy that leads where they have led, or
    as anything of that shape where no gradient depends on it.
    """
    before, after = list(kept), list(results)
    for place, number, matters, changes in graph.renewals:
        target, value = inputs[place], results[number]
        before[place] = _with_history(target) if matters else target.detach()
        target.data.copy_(value)  # autograd counts that once, when it makes the tensor a result
        if changes > 1:
            torch.autograd.graph.increment_version([target] * (changes - 1))
        # Where the backward reads the new value, it reads it of the tensor that the caller may change.
        after = [target if one is value else one for one in after]
    ctx.dirty_tensors = tuple([inputs[renewal.place] for renewal in graph.renewals])  # as ``mark_dirty`` would set it
    return tuple(before), after


def _keep_outside(ctx: Any, graph: Graph, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
    """Keep what people hold, too, as eager does: new values as the inputs that have them from now on, and what the
    user's function did not save as the memory that it is."""
    values = list(ctx.to_save)
    if graph.new_values:
        graph.changes.write_back(inputs, results[graph.result_count : graph.visible_count])
        for position, place in graph.new_values:
            values[position] = inputs[place]
    live = [values[position] for position in graph.live]
    # A node that held its own results would never be freed.
    own = set(map(id, results))
    apart = [value.detach() if id(value) in own else value for value in live]
    ctx.live = [(value, torch_compat.version_of(value)) for value in apart]
    ctx.to_save = tuple([value for position, value in enumerate(values) if position not in graph.live])


def add_live(values: list[torch.Tensor], ctx: Any, graph: Graph) -> None:
    """Put what is live between what was saved."""
    for position, (value, _) in zip(graph.live, ctx.live, strict=True):
        values.insert(position, value)


def _with_history(tensor: torch.Tensor) -> torch.Tensor:
    torch_compat.set_grad_enabled(True)
    try:
        return tensor.clone()
    finally:
        torch_compat.set_grad_enabled(False)


def _apart(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results as tensors of their own: one tensor cannot be two results of a node, nor an input one of them."""
    seen = set(map(id, inputs))
    apart = []
    for value in results:
        apart.append(value.detach() if id(value) in seen else value)
        seen.add(id(value))
    return tuple(apart)


# What a context has unless a call says otherwise. The engine calls ``apply``, which would look for the backward.
CONTEXT: dict[str, Any] = {
    "apply": CompiledNode.backward,
    "used": 0,
    "kept": None,
    "kept_own": False,
    "random_states": None,
    "others": (),
    "behind_windows": (),  # parameters that are kept as windows on their memory
    "versions": (),
    "saved_versions": (),
    "live": (),
    # Of a node that runs again what another one did: the results of that one, which the user may have hooked.
    "first_results": {},
    "is_hooked": False,  # whether one of the results ever had a hook
    "_register_hook_dict": register_hook_dict,
}
for _name, _value in CONTEXT.items():
    setattr(torch_compat.context_class(CompiledNode), _name, _value)


def _run_with_grad_mode(graph: Graph, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
    """Some kernels decide by the grad mode what they keep for the backward, as in eager; in a node it is off."""
    torch_compat.set_grad_enabled(True)
    try:
        return graph.run_forward(*inputs)
    finally:
        torch_compat.set_grad_enabled(False)


def _run_below_autograd(graph: Graph, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
    with torch_compat.below_autograd():
        return _run_with_grad_mode(graph, inputs)


# PyTorch's own ``apply`` asks for function transforms first; behind the guards of a program there are none.
apply_node: Callable[..., Any] = torch_compat.unchecked_apply(CompiledNode)


def random_states(gpus: Sequence[int]) -> list[torch.Tensor]:
    """Where the random numbers of the CPU and of some GPUs are."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]


def set_random_states(gpus: Sequence[int], states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for gpu, state in zip(gpus, states[1:], strict=True):
        torch.cuda.set_rng_state(state, gpu)
