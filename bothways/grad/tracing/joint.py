"""Traces a graph's forward and backward together, functionalized, into one graph of ATen operations.

In-place operations become new values; inputs that were changed are listed with their new value, outputs that
share memory with an input or with each other are listed as views to take again. What the result cannot express
raises ``NotDifferentiable``, and the caller runs the captured graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.fake import NotThin, SizedByData, ThinMode, answer, fake_tensor_mode
from bothways.grad.tracing.keeping import NOTHING_KEPT, Keeping, keeping
from bothways.grad.tracing.layouts import LayoutMatters, Layouts
from bothways.grad.tracing.leaf_order import leaf_order
from bothways.grad.tracing.origins import Origins
from bothways.grad.tracing.overlaps import WritesShared
from bothways.grad.tracing.results import TracedResults, geometry, memory_of, unwrapped
from bothways.grad.tracing.saving import Way, pieces_of, ways_through
from bothways.grad.tracing.sizes import FIXED, Sizes
from bothways.grad.tracing.trace import Decompositions, Recorder
from bothways.grad.tracing.traced import (
    USUAL,
    ChangesGradient,
    IndependentResults,
    Joint,
    Moment,
    NotDifferentiable,
    NotForAllSizes,
    Output,
    Result,
    ResultView,
    Variables,
)
from bothways.node_facts import GIVEN
from bothways.record.generated import keep_graph
from bothways.runtime.torch_state import restore, torch_state
from bothways.symbols import Frozen
from bothways.torch_compat.said import said


def trace_joint(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    grad: bool,
    moment: Moment = USUAL,
    sizes: Sizes = FIXED,
    expected: Sequence[torch.Tensor | None] | None = None,
    hidden: Sequence[int] | None = None,
    decompositions: Decompositions | None = None,
) -> Joint:
    """Trace ``function`` on fakes of ``inputs``; with ``grad``, the backward that runs at ``moment``, too.

    The function takes the symbols of ``sizes`` before the tensors, and the fakes have these sizes. With ``expected``,
    tensors laid out like the outputs, images between convolutions may lie as is best for those. Where ``hidden`` is
    given, what autograd saved is looked up, and the values at those places of the forward are results as well.
    Operations in ``decompositions`` are recorded as what the functions given for them do.
    """
    if expected is not None:
        layouts = Layouts(expected)
        try:
            joint = _trace(function, inputs, grad, moment, sizes, layouts, hidden, decompositions)
            layouts.end()
            joint.is_turned = layouts.is_used
            return _recorded(joint, hidden)
        except IndependentResults:
            raise
        except (LayoutMatters, NotThin, Frozen, NotDifferentiable):
            if not layouts.is_used:
                raise
    return _recorded(_trace(function, inputs, grad, moment, sizes, None, hidden, decompositions), hidden)


def _recorded(joint: Joint, hidden: Sequence[int] | None) -> Joint:
    """Write down the graph for people; not one that is traced to find out what a twin keeps."""
    if hidden is None or hidden:
        returned: dict[str, Sequence[Any]] = {"results": joint.results, "gradients": joint.gradients}
        returned["updates of inputs"] = list(joint.updates.values())
        name = "joint" if hidden is None else "joint, for second derivatives"
        keep_graph(name, joint.recorder.graph, returned)
    return joint


def _trace(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    grad: bool,
    moment: Moment,
    sizes: Sizes,
    layouts: Layouts | None,
    hidden: Sequence[int] | None,
    decompositions: Decompositions | None,
) -> Joint:
    try:
        return trace_thin(function, inputs, grad, moment, sizes, layouts, hidden, decompositions)
    except (SizedByData, WritesShared) as error:  # the latter where what was written is looked at, after the function
        raise NotDifferentiable(said(error)) from error
    except (NotThin, Frozen) as error:
        if layouts is not None and layouts.is_used:
            raise
        if not sizes.may_specialise:
            raise NotForAllSizes(str(error)) from error
        function = partial(function, *sizes.now)
        other = fake_tensor_mode()
        fakes = [other.from_tensor(tensor) for tensor in _detached(inputs)]
        try:
            joint = _trace_joint(other, Recorder(decompositions), fakes, function, inputs, grad, moment, hidden)
        except (AssertionError, WritesShared) as error:  # of fake tensors: another kind of tensor is made inside
            raise NotDifferentiable(said(error)) from error
        sizes.specialise()
    joint.sizes = sizes
    return joint


def trace_thin(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    grad: bool,
    moment: Moment,
    sizes: Sizes,
    layouts: Layouts | None = None,
    hidden: Sequence[int] | None = None,
    decompositions: Decompositions | None = None,
) -> Joint:
    """Trace on thin tensors. What becomes known about sizes in the middle changes which operations run: then the whole
    is traced again."""
    outlines = sizes.outlines or [None] * len(inputs)
    while True:
        known = sizes.environment.version
        mode = ThinMode()
        with torch.inference_mode(False):  # where tensors count their changes, as inputs do that were made outside
            fakes = [mode.from_tensor(*pair) for pair in zip(_detached(inputs), outlines, strict=True)]
        bound = partial(function, *sizes.numbers)
        recorder = Recorder(decompositions, answer, layouts)
        with nullcontext() if sizes.may_specialise else sizes.environment.unfrozen():
            joint = _trace_joint(mode, recorder, fakes, bound, inputs, grad, moment, hidden)
        if sizes.environment.version == known:
            joint.sizes = sizes
            return joint


def _detached(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in inputs]


def _trace_joint(
    mode: Any,
    recorder: Recorder,
    fakes: list[Any],
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    grad: bool,
    moment: Moment,
    hidden: Sequence[int] | None,
) -> Joint:
    recorder.origins = Origins()
    primals = [recorder.input(f"{GIVEN}{index}", fake) for index, fake in enumerate(fakes)]
    if recorder.layouts is not None:
        recorder.layouts.begin(fakes)
    with (
        recorder.origins, torch_compat.tracing(), torch_compat.without_saved_tensor_hooks(), mode, recorder,
        torch_compat.functionalized(),
    ):  # fmt: skip
        wrapped = _functional(fakes, inputs, grad)
        versions = list(map(torch_compat.version_of, wrapped))
        outputs = _run_keeping_state(function, wrapped)
        if recorder.layouts is not None:
            outputs = recorder.layouts.restored(outputs)
        results = TracedResults(recorder, fakes, wrapped, outputs)
        described = [results.describe(output) for output in outputs]
        variables = {} if hidden is None else saved_variables(recorder, results.values)
        order = leaf_order(results.values, wrapped) if grad else ()
        results.add(hidden or (), variables)
        behind = [nodes_behind(value) for value in results.values]
        ways = ways_through(behind, wrapped)
        kept = _keeping(recorder, fakes, wrapped, ways) if grad else NOTHING_KEPT
        differentiable = tuple(value.requires_grad for value in results.values)
        updates = _updates(recorder, fakes, wrapped, any(differentiable))
        joint = Joint(
            recorder, primals, results.nodes, described, updates,
            tuple(_changes(wrapped[index], versions[index]) for index in updates),
            tuple(_changes(value, 0) for value in results.values),
            differentiable, pieces_of(ways), _reached(behind, wrapped),
            frozenset(recorder.graph.nodes), hidden=len(hidden or ()), variables=variables,
            stand_ins=_stand_ins(recorder), keeping=kept, recounted=_recounted(wrapped, versions, updates),
            views=tuple(value._is_view() for value in results.values), leaf_order=order,
        )  # fmt: skip
        _check_reached(joint, inputs, grad)
        if grad:
            _keep_apart(joint)
            with torch_compat.autocast_as(moment.autocast):
                _add_backward(joint, wrapped, results.values, inputs, moment)
            joint.moment = moment._replace(strides=joint.tangent_strides)
    with torch.no_grad():
        _check_windows(described, fakes, [unwrapped(value) for value in results.values])
    return joint


def _functional(fakes: list[Any], inputs: Sequence[torch.Tensor], grad: bool) -> list[Any]:
    wrapped = [torch_compat.to_functional(fake) for fake in fakes]
    if grad:
        for value, original in zip(wrapped, inputs, strict=True):
            value.requires_grad_(original.requires_grad)
    return wrapped


def _check_reached(joint: Joint, inputs: Sequence[torch.Tensor], grad: bool) -> None:
    """A view taken without gradients needs one if its base does, and leads nowhere: a node leads to inputs."""
    if not grad and any(joint.differentiable):
        raise NotDifferentiable("a result needs a gradient of a tensor that asks for one inside")
    if not all(reached for reached, moves in zip(joint.reached, joint.differentiable, strict=True) if moves):
        raise NotDifferentiable("a result needs a gradient that comes to no input")
    pairs = zip(joint.reached, joint.differentiable, strict=True)
    if any(moves and not inputs[place].requires_grad for reached, moves in pairs for place in reached):
        raise NotDifferentiable("a result needs a gradient of an input that asks for one inside")


def _check_windows(outputs: Sequence[Output], inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Raise where a view is not what the operations that are taken again give: one that was transposed in place."""
    for output in outputs:
        if isinstance(output, ResultView) and output.window is not None:
            window = unwrapped(output.window)
            try:
                again = output.take(inputs, results, None)
            except RuntimeError as error:  # of a base of that shape it cannot be taken at all
                raise NotDifferentiable("the shape of what a view was taken of is changed in place") from error
            if geometry(again) != geometry(window) and not _lie_alike(again, window):
                raise NotDifferentiable("the shape of a view is changed in place")


def _keeping(
    recorder: Recorder, fakes: list[torch.Tensor], wrapped: list[torch.Tensor], ways: Mapping[Any, Way]
) -> Keeping:
    pairs = enumerate(zip(wrapped, fakes, strict=True))
    changed = [index for index, (value, fake) in pairs if unwrapped(value) is not fake]
    try:
        return keeping(recorder, ways, wrapped, changed)
    except RuntimeError as error:  # what a function has saved was changed since
        raise NotDifferentiable(said(error)) from error


def _stand_ins(recorder: Recorder) -> dict[torch.fx.Node, torch.fx.Node]:
    pairs = [] if recorder.layouts is None else recorder.layouts.stand_ins()
    return {recorder.node_of(turned): recorder.node_of(own) for turned, own in pairs}


def _keep_apart(joint: Joint) -> None:
    """Raise when differentiable results have nothing but inputs in common.

    Eager keeps what each needs apart, so that one backward does not use up what the other needs; one node cannot.
    """
    groups: list[tuple[set[torch.fx.Node], set[int]]] = []
    for index, (node, moves) in enumerate(zip(joint.results, joint.differentiable, strict=True)):
        if moves:
            own, members = _computed_from(node), {index}
            for other in [group for group in groups if group[0] & own]:
                groups.remove(other)
                own, members = own | other[0], members | other[1]
            groups.append((own, members))
    if len(groups) < 2:
        return
    if joint.updates or joint.recounted or joint.random_nodes:
        raise NotDifferentiable("independent results, with random numbers or mutated inputs between them")
    raise IndependentResults(_output_groups(joint.outputs, [members for _, members in groups]))


def _output_groups(outputs: list[Output], results: list[set[int]]) -> list[list[int]]:
    """The positions of the outputs that belong to each group of results; what moves with none joins the first."""
    groups: list[list[int]] = [[] for _ in results]
    for position, output in enumerate(outputs):
        result = output.index if isinstance(output, Result) else None
        if isinstance(output, ResultView) and not output.of_input:
            result = output.base
        number = next((number for number, members in enumerate(results) if result in members), 0)
        groups[number].append(position)
    return groups


def _computed_from(node: torch.fx.Node) -> set[torch.fx.Node]:
    computed: set[torch.fx.Node] = set()
    pending = [node]
    while pending:
        step = pending.pop()
        if step.op == "call_function" and step not in computed:
            computed.add(step)
            pending.extend(step.all_input_nodes)
    return computed


def _run_keeping_state(function: Callable[..., Any], wrapped: list[torch.Tensor]) -> Sequence[Any]:
    """Run the function; when it fails in the middle, what it has entered is left."""
    before = torch_state()
    try:
        outputs: Sequence[Any] = function(*wrapped)
        if torch.is_grad_enabled() != before.grad:
            raise NotDifferentiable("the function leaves another grad mode behind")
    except (RuntimeError, ValueError, IndexError) as error:
        restore(before)
        if torch_compat.wants_numbers(error):
            raise NotThin("an operation that takes no symbolic sizes") from error
        # The stand-ins are leaves where the inputs may have a history: what is legal on those may not be here.
        kind = ChangesGradient if torch_compat.refuses_leaf(error) else NotDifferentiable
        raise kind(said(error)) from error
    except BaseException:
        restore(before)
        raise
    return outputs


def _reached(behind: Sequence[set[Any]], wrapped: list[torch.Tensor]) -> tuple[frozenset[int], ...]:
    """Which inputs a backward through each result comes to, with a gradient or without one."""
    places = {id(value): index for index, value in enumerate(wrapped)}
    leaves = [[getattr(node, "variable", None) for node in nodes] for nodes in behind]
    return tuple(frozenset(places[id(leaf)] for leaf in variables if id(leaf) in places) for variables in leaves)


def nodes_behind(*results: torch.Tensor) -> set[Any]:
    """The autograd nodes that a backward through results goes through."""
    pending: list[Any] = [result.grad_fn for result in results]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending.extend(following for following, _ in node.next_functions)
    return seen


def saved_variables(recorder: Recorder, results: Sequence[torch.Tensor]) -> Variables:
    """What autograd has saved for a backward through the results: tensors with their history, by who computes them."""
    variables: Variables = {}
    for node in nodes_behind(*results):
        try:
            saved = list(torch_compat.saved_tensors_of(node))
        except RuntimeError as error:  # it was changed since
            raise NotDifferentiable(said(error)) from error
        for variable in saved:
            made_by = recorder.known(unwrapped(variable))
            if made_by is not None and not _same_history(variables.setdefault(made_by, variable), variable):
                raise NotDifferentiable("one value is two tensors to autograd")
    return variables


def _same_history(one: torch.Tensor, other: torch.Tensor) -> bool:
    history = (one.requires_grad, one.grad_fn, one.output_nr)
    return history == (other.requires_grad, other.grad_fn, other.output_nr)


def _changes(value: torch.Tensor, before: int | None) -> int:
    """How often a tensor was changed in place since; inference tensors do not count."""
    now = torch_compat.version_of(value)
    return 0 if now is None or before is None else now - before


def _recounted(
    wrapped: list[torch.Tensor], versions: Sequence[int | None], updates: Container[int]
) -> tuple[int, ...]:
    """The inputs whose versions grew while their elements stayed, as often as they did."""
    pairs = enumerate(zip(wrapped, versions, strict=True))
    return tuple(index for index, pair in pairs if index not in updates for _ in range(_changes(*pair)))


def _updates(
    recorder: Recorder, fakes: list[torch.Tensor], wrapped: list[torch.Tensor], moves: bool
) -> dict[int, torch.fx.Node]:
    """The inputs that were mutated, with their new values; ``moves`` tells whether a result has a gradient.

    An input that asks for a gradient may be changed where autograd does not look. Together with results that have
    one it may not: what their backward reads depends on when it was changed.
    """
    updates = {}
    for index, (value, fake) in enumerate(zip(wrapped, fakes, strict=True)):
        new = unwrapped(value)
        if new is not fake:
            if value.grad_fn is not None or (value.requires_grad and moves):
                raise ChangesGradient("an input that needs a gradient is mutated")
            if geometry(new) != geometry(fake) and (not _lie_alike(new, fake) or memory_of(new) == memory_of(fake)):
                # Also where it comes to the same in the end: what is only seen in another way is not written.
                raise NotDifferentiable("the shape of an input is changed")
            updates[index] = recorder.node_of(new)
    return updates


def _add_backward(
    joint: Joint,
    wrapped: list[torch.Tensor],
    results: list[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    moment: Moment,
) -> None:
    joint.tangent_strides = moment.strides or tuple(
        unwrapped(result).stride() if moves else None
        for result, moves in zip(results, joint.differentiable, strict=True)
    )
    before = [unwrapped(value) for value in wrapped]
    roots, tangents, inners = [], [], []
    for index, (result, stride) in enumerate(zip(results, joint.tangent_strides, strict=True)):
        if stride is not None:
            inner = torch_compat.fake_with_strides(unwrapped(result), stride)
            joint.tangents.append(joint.recorder.input_later(f"tangents_{index}", inner))
            roots.append(result)
            tangents.append(torch_compat.to_functional(inner).requires_grad_(moment.again))
            inners.append(inner)
    sources = [value for value, original in zip(wrapped, inputs, strict=True) if original.requires_grad]
    try:
        with torch_compat.without_addresses():  # formulas may be the user's Python, which capture has not looked at
            all_of_them = torch_compat.gradients(roots, sources, tangents, moment.again) if roots else ()
    except (RuntimeError, ValueError, IndexError) as error:  # what the backward needs was changed in place, for one
        if torch_compat.wants_numbers(error):
            raise NotThin("a formula that takes no symbolic sizes") from error
        raise NotDifferentiable(said(error)) from error
    gradients = iter(all_of_them or [None] * len(sources))
    changed = zip([*wrapped, *tangents], [*before, *inners], strict=True)
    if any(unwrapped(value) is not inner for value, inner in changed):
        raise NotDifferentiable("a custom function changes an input or a gradient in its backward")
    for original in inputs:
        gradient = next(gradients) if original.requires_grad else None
        if gradient is not None and joint.recorder.layouts is not None:
            gradient = joint.recorder.layouts.restored_gradient(gradient, original)
        joint.gradients.append(None if gradient is None else joint.recorder.node_of(unwrapped(gradient)))


def _lie_alike(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether elements lie in the same places: steps along what has one element, as 1x1 kernels have, tell nothing."""
    if tuple(new.size()) != tuple(old.size()) or new.storage_offset() != old.storage_offset():
        return False
    steps = zip(old.size(), new.stride(), old.stride(), strict=True)
    return all(one == other for size, one, other in steps if type(size) is not int or size > 1)
