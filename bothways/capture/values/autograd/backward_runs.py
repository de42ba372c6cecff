"""One backward that captured code calls, written into the graph: nodes that compute gradients, and calls of hooks.

Without hooks on what is computed inside, a backward is one node. A tensor that is hooked divides it: a node gives the
tensor's gradient, the hooks are captured as the Python they are, and another node goes on with what they return. What
autograd does with a leaf's gradient is captured as Python, too, in autograd's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.backward.engine import is_capturing
from bothways.capture.guards.sources import Attr
from bothways.capture.shapes.autograd_history import AutogradHistory, Backward, HistoryUnknown, memory_of
from bothways.capture.shapes.fakes import Fake, fake_like
from bothways.capture.standins import gradients as standins
from bothways.capture.values.autograd.crossings import Crossing
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import NONE, ConstantValue
from bothways.capture.values.hooks.hooks import Registration, Removal
from bothways.capture.values.nn.module_hooks import LastNodeHooked, ModuleHooked
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.errors import Unsupported
from bothways.fake import NotThin
from bothways.node_facts import note_of_node
from bothways.runtime.gradients import gradients

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

TENSOR_HOOK, AFTER, RETAIN = "register_hook", "register_post_accumulate_grad_hook", "retain_grad"
# What a caller has registered on a tensor, by the method that registers it.
FROM_OUTSIDE = {TENSOR_HOOK: "_backward_hooks", AFTER: "_post_accumulate_grad_hooks"}


@dataclass(frozen=True)
class BackwardCall:
    """One call: from which tensors, with which gradients of theirs."""

    roots: list[TensorValue]
    tangents: list[TensorValue]
    retain_graph: bool
    create_graph: bool

    def along(self, roots: Iterable[torch.fx.Node], tangents: Iterable[TensorValue]) -> Backward:
        return Backward(list(roots), [value.node for value in tangents], self.retain_graph, self.create_graph)


class BackwardRun:
    """A backward as it is captured; ``inputs`` are what it is asked for, None for all leaves that it comes to."""

    def __init__(self, tracer: Tracer, call: BackwardCall, inputs: list[TensorValue] | None) -> None:
        self.tracer, self.call, self.inputs = tracer, call, inputs
        self.autograd = tracer.graph.autograd
        self._ask()

    def _ask(self) -> None:
        """Find out where the backward goes, and what it meets."""
        tracer = self.tracer
        self.history = history_of(tracer)
        roots = [root.node for root in self.call.roots]
        if not all(map(self.history.knows, roots)):
            tracer.stop("backward", "a custom function's backward goes through a graph that its forward has made")
        self._behind = self.history.behind(roots)
        tracer.guard("{c0}()" if is_capturing() else "not {c0}()", is_capturing)
        if is_capturing():
            tracer.stop("backward", "the caller captures backwards by themselves")
        if torch.is_anomaly_enabled():
            tracer.stop("backward", "anomaly mode looks at each operation of a backward")
        if self.history.is_freed(roots, None if self.inputs is None else [tensor.node for tensor in self.inputs]):
            tracer.stop("op_failed", torch_compat.FREED)
        # A transform's own leaves are gone when it is over, and their gradients with them.
        known = [node for node in self.history.leaves(roots) if not tracer.graph.levels.is_gone(node)]
        self.leaves = [self._leaf_at(node) for node in known]
        self._hooked: dict[int, TensorValue] = {}
        self._crossings: dict[torch.fx.Node, Crossing] = {}
        self._hooks = self._hooks_on_the_way()
        self._stop_at_meetings()
        self._arrived: dict[int, list[TensorValue]] = {}  # gradients of tensors, by the tensor's Value
        self._given: dict[int, TensorValue] = {}  # the same when the hooks have seen them
        self._thin: dict[int, Any] = {}  # gradients that came in one piece, as the history has them
        self._lying: Counter[int] = Counter()  # how many gradients lie in a memory

    def _stay_inside(self) -> None:
        if self.history.comes_from_outside(self._behind):
            self.tracer.stop("backward", "the backward comes to what was computed before the call")

    def _leaf_at(self, node: torch.fx.Node) -> TensorValue:
        leaf = self.autograd.leaf_at(node)
        if leaf is None:
            self.tracer.stop("backward", f"a backward comes to a leaf of which nothing is known ({node.name})")
        if leaf.is_stripped:
            self.tracer.stop("tensor_subclass", f"a backward comes to {leaf.describe()} of a class of its own")
        return leaf

    def _hooks_on_the_way(self) -> dict[int, list[Registration]]:
        """What captured code has registered on tensors that the backward may come to, by the tensor's Value."""
        leaves = set(map(id, self.leaves))
        hooks: dict[int, list[Registration]] = {}
        for event in self.tracer.effects.registrations:
            if isinstance(event, Removal):
                self.tracer.stop("backward", "a hook from outside is removed before a backward")
            if isinstance(event, LastNodeHooked):
                self.tracer.stop("backward", "a backward comes to a hook of a module of the deprecated kind")
            if isinstance(event, ModuleHooked):
                self._find_crossings(event)
            if not isinstance(event, Registration) or event.removed:
                continue
            for moment in event.place.moments:
                if id(moment.tensor) not in leaves and self.history.of(moment.node).grad_fn not in self._behind:
                    continue
                if event.place.path not in (TENSOR_HOOK, AFTER, RETAIN):
                    self.tracer.stop("backward", "a backward comes to a hook that is no tensor's")
                if id(moment.tensor) not in leaves and moment.tensor.obj is not None:
                    self.tracer.stop("backward", "a backward comes to a hook of what was computed before the call")
                if id(moment.tensor) not in leaves and not self.history.is_unchanged(moment.node):
                    self.tracer.stop("backward", "a backward comes to a hook of a tensor that was changed since")
                self._hooked[id(moment.tensor)] = moment.tensor
                hooks.setdefault(id(moment.tensor), []).append(event)
        return hooks

    def _stop_at_meetings(self) -> None:
        """Where ways around a tensor that divides the backward meet again, it goes on when all has come."""
        crossing = [tensor.node for crossed in self._crossings.values() for tensor in crossed.moving]
        stops = [*(tensor.node for tensor in self._hooked.values()), *crossing]
        if all(self.history.of(node).is_leaf for node in stops):
            return
        try:
            nodes = self.history.meetings([root.node for root in self.call.roots], stops, crossing)
        except HistoryUnknown as reason:
            self.tracer.stop("backward", str(reason))
        for node in nodes:
            value = self.history.of(node)
            tensor = TensorValue(node, Fake(value, value.device))
            self._hooked[id(tensor)] = tensor

    def _find_crossings(self, event: ModuleHooked) -> None:
        """Where the backward enters and leaves a module that has hooks."""
        for is_output, side in ((True, event.outputs), (False, event.inputs)):
            first = next((tensor for tensor in side.tensors if tensor.fake.requires_grad), None)
            if first is not None and self.history.of(first.node).grad_fn in self._behind:
                crossing = Crossing(event, side, is_output)
                self._crossings[crossing.node] = crossing

    # What is asked for.

    def gradients(self) -> list[TensorValue | None]:
        """``torch.autograd.grad``: the hooks of tensors are called, and nothing is accumulated."""
        inputs = self.inputs or []
        if not all(tensor.obj is None for tensor in inputs):  # from what was made inside no way leads there and back
            self._stay_inside()
        self._check_leaves(inputs)
        self._run(inputs, accumulates=False)
        return [self._given.get(id(tensor)) for tensor in inputs]

    def accumulate(self) -> None:
        """``backward()``."""
        self._stay_inside()
        for leaf in self.inputs or ():
            if not self.history.of(leaf.node).is_leaf:
                self.tracer.stop("backward", "the gradient of a tensor that is no leaf is kept")
        leaves = self.leaves if self.inputs is None else self.inputs
        for leaf in self._check_leaves(leaves):
            self.tracer.guard("{s0}.is_leaf", leaf.source)
        self._run(leaves, accumulates=True)
        self.tracer.running.note_backward()

    def _check_leaves(self, tensors: list[TensorValue]) -> list[TensorValue]:
        """The tensors from outside that may be leaves or not; stops at one to which no gradient comes in eager."""
        unsure = []
        for tensor in tensors:
            if tensor.source is None or tensor.obj is None or isinstance(tensor.obj, torch.nn.Parameter):
                continue  # a parameter is always a leaf
            if torch_compat.leads_nowhere(tensor.obj):
                self.tracer.stop("backward", "a backward by a view that was taken without gradients")
            if tensor.obj._is_view():
                self.tracer.guard("not {c0}({s0})", tensor.source, torch_compat.leads_nowhere)
            else:
                self.tracer.guard("not {s0}._is_view()", tensor.source)
            unsure.append(tensor)
        return unsure

    # How it runs.

    def _run(self, inputs: list[TensorValue], accumulates: bool) -> None:
        inputs = list({id(tensor): tensor for tensor in inputs}.values())
        try:
            watched, results, order = self._followed(inputs)
        except NotThin as error:
            if not self.autograd.turn_to_fakes():
                self.tracer.stop("op_failed", f"a backward fails: {error}")
            self._ask()
            watched, results, order = self._followed(inputs)
        call, history = self.call, self.history
        self._memories = history.memories()
        steps = [self._crossings.get(node) or watched[node] for node in order]
        crossings = [step for step in steps if isinstance(step, Crossing)]
        inside = self._hooked.keys() - set(map(id, self.leaves))
        parts = [step for step in steps if isinstance(step, TensorValue) and id(step) in inside]
        crossing = [tensor for step in crossings for tensor in step.moving if id(tensor) not in inside]
        if crossings and call.retain_graph:
            self.tracer.stop("backward", "a backward that keeps its graph comes to a hook of a module")
        if parts and call.create_graph:
            self.tracer.stop("backward", "a backward that is differentiated again comes to a hook")
        unseen = self._unseen(inputs, [*parts, *crossing])
        for tensor in (*parts, *crossing):
            self._begin_part(tensor)
        for crossed in crossings:
            crossed.event.done = True
            self.autograd.dissolve(crossed.node)
        targets = list({id(tensor): tensor for tensor in (*inputs, *parts, *crossing)}.values())
        if self.autograd.parts:
            self._go_on(call.roots, call.tangents, targets)
        else:
            self._record([root.node for root in call.roots], call.tangents, inputs, results)
        kept = set(map(id, inputs)) if accumulates else set()
        stays = {id(tensor) for step in crossings for tensor in step.moving}  # until all of a module's have come
        for step in steps:
            if isinstance(step, Crossing):
                self._cross(step, targets)
                continue
            before = self._total(step)
            self._come_to(step, targets, id(step) in inside, id(step) in kept, id(step) in stays)
            if id(step) in unseen and not accumulates:
                self._given[id(step)] = before

    def _followed(self, inputs: list[TensorValue]) -> tuple[dict[torch.fx.Node, TensorValue], Any, Any]:
        """What autograd comes to: the tensors that are watched, the gradients of the inputs, and the order of all."""
        call, history = self.call, self.history
        candidates = (*self._hooked.values(), *inputs)
        watched = {tensor.node: tensor for tensor in candidates if history.of(tensor.node).requires_grad}
        whole = call.along([root.node for root in call.roots], call.tangents)
        together = {node: crossing.moving[0].node for node, crossing in self._crossings.items()}
        try:
            results, order = history.run(whole, [tensor.node for tensor in inputs], watched, together)
        except (NotThin, Unsupported):
            raise
        except Exception as error:
            self.tracer.stop("op_failed", f"a backward fails: {error}")
        if any(result is not None and result.layout is not torch.strided for result in results):
            self.tracer.stop("backward", "a gradient is a sparse tensor")
        return watched, results, order

    def _begin_part(self, tensor: TensorValue) -> None:
        """A tensor's hooks are called here, so autograd does not have to see the tensor."""
        if tensor.node not in self.autograd.parts and self._was_gone_through(tensor):
            self.tracer.stop("backward", "a tensor is hooked after a backward that went through it")
        part = self.autograd.begin_part(tensor)
        note_of_node(self.autograd.parts[part], watched=None)
        for event in self._hooks.get(id(tensor), ()):
            event.done = event.place.path == TENSOR_HOOK

    def _was_gone_through(self, tensor: TensorValue) -> bool:
        """Whether a backward that was captured before went through a tensor as through any other."""
        grad_fn = self.history.of(tensor.node).grad_fn
        before = (node for node in self.tracer.graph.graph.nodes if node.target is gradients)
        return any(grad_fn in self.history.behind(node.args[0]) for node in before)

    def _unseen(self, inputs: list[TensorValue], parts: list[TensorValue]) -> set[int]:
        """Tensors whose gradient is given as it was before the hooks: autograd notes what it goes on from."""
        nodes = [tensor.node for tensor in inputs]
        return {id(tensor) for tensor in parts if self.history.leads_to(tensor.node, nodes)}

    def _total(self, tensor: TensorValue) -> TensorValue:
        """The gradient of a tensor, of which all has come."""
        arrived = self._arrived.get(id(tensor))
        if not arrived:
            self.tracer.stop("backward", "a gradient comes another way than autograd said")
        if len(arrived) > 1:
            self._arrived[id(tensor)] = [self.captured(standins.total, ListValue([*arrived]))]
            self._thin.pop(id(tensor), None)
        return self._arrived[id(tensor)][0]

    def _cross(self, crossing: Crossing, targets: list[TensorValue]) -> None:
        """Call the hooks of a module, and go on with what they make of the gradients."""
        arrived = [self._total(tensor) if id(tensor) in self._arrived else NONE for tensor in crossing.tensors]
        results = crossing.call(self, arrived)
        moved = [
            (tensor, result)
            for tensor, result in zip(crossing.tensors, results, strict=True)
            if isinstance(result, TensorValue) and tensor.fake.requires_grad
        ]
        for tensor, result in moved:
            self._given[id(tensor)] = result
        if moved:
            self._go_on([tensor for tensor, _ in moved], [result for _, result in moved], targets, is_begun=True)

    def _come_to(
        self, tensor: TensorValue, targets: list[TensorValue], is_part: bool, accumulates: bool, stays: bool
    ) -> None:
        """What autograd does when the gradient of a tensor is complete."""
        key = id(tensor)
        gradient = self._total(tensor)
        hooks = self._hooks_of(tensor, TENSOR_HOOK)
        if hooks:
            before = gradient.fake
            gradient = self.captured(standins.through_hooks, gradient, ListValue(hooks))
            if (gradient.fake.shape, gradient.fake.dtype) != (before.shape, before.dtype):
                self.tracer.stop("op_failed", "a hook gives a gradient of another shape or dtype")
            self._thin.pop(key, None)
        self._given[key] = gradient
        if is_part:
            if any(event.place.path == RETAIN for event in self._hooks.get(key, ())):
                kept: Value = tensor.attrs.get("grad") or NONE
                tensor.store(self.tracer, "grad", self.captured(standins.retained, gradient, kept))
            if stays:
                self._arrived[key] = [gradient]
                return
            self._go_on([tensor], [gradient], targets, is_begun=True)
        elif accumulates:
            self.captured(standins.accumulate, tensor, gradient, ConstantValue(self._copies(tensor)))
            for hook in self._hooks_of(tensor, AFTER):
                self.captured(standins.call_after, tensor, hook)

    def _go_on(
        self,
        roots: Sequence[TensorValue],
        tangents: Sequence[TensorValue],
        targets: list[TensorValue],
        is_begun: bool = False,
    ) -> None:
        """Go from tensors to the next ones that are hooked, and to leaves; to hooked ones the caller has come."""
        parts = self.autograd.parts
        begun = []
        for root, tangent in zip(roots, tangents, strict=True):
            if root.node in parts and not is_begun:
                self._arrived.setdefault(id(root), []).append(tangent)
            else:
                begun.append((parts.get(root.node, root.node), tangent))
        if not begun:
            return
        nodes, along = [node for node, _ in begun], [tangent for _, tangent in begun]
        try:
            history = self.autograd.history_in_parts()
        except HistoryUnknown as reason:
            self.tracer.stop("backward", str(reason))
        try:
            results, _ = history.run(self.call.along(nodes, along), [target.node for target in targets])
        except Exception as error:
            self.tracer.stop("backward", f"a backward that is divided fails: {error}")
        self._record(nodes, along, targets, results)

    def _record(
        self,
        roots: Sequence[torch.fx.Node],
        tangents: Sequence[TensorValue],
        targets: list[TensorValue],
        computed: Sequence[Any],
    ) -> None:
        """Write down the node that computes the gradients which the history has found."""
        pairs = [(target, gradient) for target, gradient in zip(targets, computed, strict=True) if gradient is not None]
        if not pairs:
            return
        starts = [TensorValue(root, Fake(self.history.of(root), self.history.of(root).device)) for root in roots]
        arguments = [TupleValue([*values]) for values in (starts, [target for target, _ in pairs], tangents)]
        flags = ConstantValue(self.call.retain_graph), ConstantValue(self.call.create_graph)
        results = tuple(gradient for _, gradient in pairs)
        recorded = self.tracer.graph.node(gradients, [*arguments, *flags], tuple(map(fake_like, results)))
        values: list[Any] = recorded.items  # type: ignore[attr-defined]
        self.autograd.give(values[0].node.args[0], results)
        for (target, gradient), value in zip(pairs, values, strict=True):
            self._arrived.setdefault(id(target), []).append(value)
            self._thin[id(target)] = gradient
            self._lying[memory_of(gradient)] += 1

    def captured(self, function: Any, *values: Value) -> Any:
        """Capture a call, with autograd's grad mode."""
        called = library_function(self.tracer, function)
        mode = ConstantValue(self.call.create_graph)
        return self.tracer.inline(standins.in_backward, [called, mode, *values], {}).realize()

    def _copies(self, leaf: TensorValue) -> str | None:
        """How a leaf that has no gradient takes one: as it is, if nothing else has its memory, or as a copy."""
        is_dense = _is_dense(leaf.fake)
        copies = "like the leaf" if is_dense else "contiguous"
        thin = self._thin.get(id(leaf))
        if thin is None or self.call.create_graph:
            return copies
        memory = memory_of(thin)
        if memory in self._memories or self._lying[memory] > 1:
            return copies
        strides = zip(leaf.fake.shape, thin.stride(), leaf.fake.stride, strict=True)
        fits = all(size == 1 or own == wanted for size, own, wanted in strides) if is_dense else thin.is_contiguous()
        return None if fits else copies

    def _hooks_of(self, tensor: TensorValue, path: str) -> list[Value]:
        """The hooks on a tensor, those first that the caller has registered."""
        inside = [event.args[0] for event in self._hooks.get(id(tensor), ()) if event.place.path == path]
        if tensor.obj is None or tensor.source is None:
            return inside
        source, hooks = Attr(tensor.source, FROM_OUTSIDE[path]), getattr(tensor.obj, FROM_OUTSIDE[path])
        if not hooks:
            self.tracer.guard("not {s0}", source)
            return inside
        outside = protocols.call_attr(self.tracer, self.tracer.wrap(hooks, source).realize(), "values")
        return [*protocols.unpack(self.tracer, outside), *inside]


def history_of(tracer: Tracer) -> AutogradHistory:
    """What autograd knows of the graph so far."""
    try:
        return tracer.graph.autograd.history()
    except HistoryUnknown as reason:
        tracer.stop("backward", str(reason))


def _is_dense(leaf: Fake) -> bool:
    """Whether a tensor's elements lie side by side, in whatever order of dimensions."""
    step = 1
    dimensions = zip(leaf.stride, leaf.shape, strict=True)
    for stride, size in sorted(dimension for dimension in dimensions if dimension[1] != 1):
        if stride != step:
            return False
        step *= size
    return True
