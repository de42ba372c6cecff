"""Builds the ``torch.fx`` graph of a capture: inputs, operations, and what each returns.

Values go in, Values come out; shapes are worked out by ``fakes``. It never runs an operation on real data.
"""

from __future__ import annotations

import itertools
import keyword
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.capture.guards.sources import Source
from bothways.capture.recording.arguments import Arguments, argument
from bothways.capture.recording.autograd import GraphAutograd
from bothways.capture.recording.copied_views import CopiedViews, OwnViews
from bothways.capture.recording.handlers_around import fails_unseen
from bothways.capture.recording.late_checks import put_off_checks
from bothways.capture.recording.levels import Levels
from bothways.capture.recording.refused_views import WrittenInputs
from bothways.capture.recording.refused_writes import check_writes
from bothways.capture.recording.repeating import check_repeatable, until_last_check
from bothways.capture.shapes import fakes
from bothways.capture.shapes.changes import acts_outside, changes_inputs, changes_something, root_of, written_roots
from bothways.capture.shapes.fake_failures import meaning_of, needs_data
from bothways.capture.shapes.fakes import AsCaptured, Fake, FakeFailure
from bothways.capture.shapes.refused_arguments import check_arguments
from bothways.capture.shapes.refused_dtypes import gives_another_dtype, may_be_refused
from bothways.capture.shapes.refused_kernels import check_kernel
from bothways.capture.shapes.safe_operations import may_draw, may_fail
from bothways.capture.shapes.warning_rules import kernel_warns
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import constant_value
from bothways.capture.values.objects.caught_warnings import innermost, is_ignored
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.object_inputs import ObjectInput, outline_of
from bothways.node_facts import Watched, facts_of_call, facts_of_node, note_of_node
from bothways.runtime.graph_module import graph_module
from bothways.runtime.listening import heard, last_category, may_be_error
from bothways.runtime.marks import Mark, mark_of
from bothways.runtime.nodes import ApplyFunction, Pinned, require_holds
from bothways.runtime.warning_nodes import Warns
from bothways.symbols import SizeNodes, Symbol, expression_of

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

MODE_STATEMENTS: frozenset[Any] = frozenset({
    torch_compat.set_grad_enabled, torch_compat.enter_autocast, torch_compat.exit_autocast,
    torch_compat.enter_inference_mode, torch_compat.exit_inference_mode,
})  # fmt: skip


class GraphBuilder:
    """The graph under construction and the Values that stand for its nodes."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.graph = torch.fx.Graph()
        self.inputs: list[TensorValue] = []
        self.objects: list[ObjectInput] = []
        self.statements: set[Any] = set()  # what it holds that sets modes
        self.left_behind: dict[torch.fx.Node, None] = {}  # copied into the graph of one node, and not needed here
        self.written = WrittenInputs(tracer)
        self.copied_views, self.own_views = CopiedViews(), OwnViews()
        self._input_names: set[str] = set()
        self._last_input: torch.fx.Node | None = None
        self.sizes = SizeNodes(self.graph)
        self._numbers: dict[torch.fx.Node, Any] = {}  # what nodes find that read a number from data
        self.autograd = GraphAutograd(self)
        self.levels = Levels(self)
        self.for_inference: set[torch.fx.Node] = set()  # inputs that were made in inference mode

    def add_input(self, tensor: torch.Tensor, source: Source) -> torch.fx.Node:
        """A placeholder for a tensor from outside, named after the path that reached it."""
        name = self._unique(re.sub(r"\W+", "_", source.name, flags=re.ASCII).lstrip("_"))
        with self._after(self._last_input):
            node = self.graph.create_node("placeholder", name, name=name.lower())
        self._last_input = node
        if tensor.is_inference():
            self.for_inference.add(node)
        return node

    def take(self, value: TensorValue) -> None:
        """An input is complete."""
        self.inputs.append(value)

    def leave_behind(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Nodes were copied into the graph of one node, and are not needed here."""
        self.left_behind.update(dict.fromkeys(nodes))

    def release(self) -> None:
        """Let go of the user's objects."""
        self.inputs, self.objects = [], []
        self.autograd.release()

    def _after(self, node: torch.fx.Node | None) -> Any:
        """Insert behind a node, or at the beginning."""
        return self.graph.inserting_before(None) if node is None else self.graph.inserting_after(node)

    def add_object(self, value: Value, hint: str, *, checked: bool = False) -> ObjectInput:
        """An input that is no tensor: an object which a node hands to the user's own Python.

        ``checked`` says that the caller looks after what was changed before.
        """
        if self.tracer.effects.changed and not checked:
            self.tracer.stop("object_in_graph", f"{value.describe()} is used after other objects were changed")
        for known in self.objects:
            if known.value is value:
                return known
        last = self.objects[-1].node if self.objects else self._last_input
        with self._after(last):
            node = self.graph.create_node("placeholder", self._unique(hint))
        self.objects.append(ObjectInput(value, node, outline_of(value)))
        return self.objects[-1]

    def _unique(self, name: str) -> str:
        """Two paths may read alike once brackets and dots are gone; parameters of the graph may not."""
        count, unique = 0, name
        while unique in self._input_names:
            count += 1
            unique = f"{name}{count}"
        self._input_names.add(unique)
        return unique

    def node(self, target: Any, args: Sequence[Value | ObjectInput], result: Any) -> Value:
        """Record a call whose result is known already, with Fakes where tensors will be."""
        tensors: Arguments = {}
        pairs = [argument(self, arg, tensors) for arg in args]
        node = self.graph.create_node("call_function", target, tuple(node for node, _ in pairs))
        self._note_origin(node)
        return self._result(node, result, tensors)

    def node_of(self, target: Any, args: Sequence[Value]) -> torch.fx.Node:
        """Record a call whose result is no tensor."""
        node = self.graph.create_node("call_function", target, tuple(argument(self, arg, {})[0] for arg in args))
        self._note_origin(node)
        return node

    def op(self, kind: str, target: Any, run: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record one operation and give the Value of its result.

        ``kind`` and ``target`` are the fx node's; ``run`` computes the same on fakes.
        """
        with self.tracer.symbols.assuming():
            return self._op(kind, target, run, args, kwargs)

    def _op(
        self, kind: str, target: Any, run: Callable[..., Any], args: list[Value], kwargs: dict[str, Value],
        earlier: FakeFailure | None = None,
    ) -> Value:  # fmt: skip
        if any(map(keyword.iskeyword, kwargs)):
            self.tracer.stop("call_unknown", "a graph's code cannot pass an argument that is called as a keyword is")
        if self.tracer.definitions.names_another(target):
            target = Pinned(target)
        check_writes(self.tracer, kind, _name_of(target), args, kwargs)
        self.written.check_operation(_name_of(target), args, kwargs, self.inputs)
        tensors: Arguments = {}
        pairs = [argument(self, arg, tensors) for arg in args]
        keyword_pairs = {name: argument(self, arg, tensors) for name, arg in kwargs.items()}
        arguments = tuple(fake for _, fake in pairs), {name: fake for name, (_, fake) in keyword_pairs.items()}
        if ops.named(_name_of(target)).writes_no_elements:
            _keep_outlines(value for value, _ in tensors.values())
        before = heard()
        try:
            check_arguments(_name_of(target), *arguments)
            result = fakes.run(run, *arguments)
            check_kernel(kind, target, *arguments)
        except FakeFailure as failure:
            looks = earlier is None and needs_data(failure.error)
            if looks and (known := linked.known_sizes(self.tracer, args, kwargs)) is not None:
                return self._op(kind, target, run, *known, earlier=failure)
            self._explain_failure(target, earlier or failure)
        as_captured = may_be_refused(_name_of(target), *arguments) or gives_another_dtype(run, *arguments)
        if isinstance(result, AsCaptured):
            as_captured, result = True, result.result
        if heard() != before or kernel_warns(target, *arguments, result):
            kind, target = self._warning(kind, target, last_category() if heard() != before else UserWarning)
        node = self.graph.create_node(
            kind,
            target,
            tuple(node for node, _ in pairs),
            {name: node for name, (node, _) in keyword_pairs.items()},
        )
        self._note_origin(node)
        if as_captured:
            note_of_node(node, as_captured=True)
        if self.for_inference and self._may_not_be_kept([value for value, _ in tensors.values()]):
            note_of_node(node, may_not_be_kept=True)
        value = self._result(node, result, tensors)
        running, changed = self.tracer.running, self.tracer.effects.changed
        if not self.tracer.options.fullgraph and fails_unseen(node, self.graph.nodes, self.inputs, running, changed):
            reason = f"{_name_of(target)} may fail, and what was changed before it could not be put back"
            self.tracer.stop("mutation_unknown", reason)
        return value

    def _may_not_be_kept(self, read: list[TensorValue]) -> bool:
        """Whether autograd may have to keep a tensor of inference mode, which it refuses."""
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return False
        has_history = any(value.fake.requires_grad for value in read)
        return has_history and not self.for_inference.isdisjoint(root_of(value.node) for value in read)

    def _warning(self, kind: str, target: Any, category: type[Warning]) -> tuple[str, Any]:
        """An operation that warns, as a node that runs at the user's line."""
        if kind not in ("call_function", "call_method"):
            return kind, target
        ignored = is_ignored(self.tracer, category)
        if not ignored and innermost(self.tracer) is not None:
            self.tracer.stop("call_unknown", f"{target} warns where filters are changed")
        if not ignored and may_be_error() and not self.tracer.options.fullgraph:
            self.tracer.stop("call_unknown", f"{target} warns")  # where that is caught, Python knows best
        where, globals_ = self.tracer.where(), self.tracer.running.frames[-1].globals
        return "call_function", Warns(target, where, globals_, ignored=ignored)

    def watch(self, tensor: TensorValue, watched: Watched) -> None:
        """Note that code outside looks at a tensor's gradient, or at the autograd node that computes it."""
        if tensor.source is None and facts_of_node(tensor.node).watched is not Watched.NODE:
            note_of_node(tensor.node, watched=watched)

    def statement(self, function: Callable[..., Any], args: tuple[Any, ...]) -> torch.fx.Node:
        """A node that changes the state the following ones run under: grad mode, autocast."""
        node = self.graph.create_node("call_function", function, args)
        self._note_origin(node)
        self.statements.add(function)
        return node

    def call(self, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        """A call of something that stands for a graph of its own."""
        node = self.graph.create_node("call_function", target, args)
        self._note_origin(node)
        return node

    def counted(self, call: str, target: Any, args: Sequence[Value], result_of: Callable[[Any], Fake]) -> Value:
        """Record an operation whose result is as long as its data says; ``result_of`` gives the Fake of that length."""
        node = self.graph.create_node(call, target, tuple(argument(self, arg, {})[0] for arg in args))
        self._note_origin(node)
        note_of_node(node, as_captured=True)
        count = self.number(int, "call_method", "size", (node, 0), least=0)
        with self.tracer.symbols.assuming():
            return self._result(node, result_of(count), {})

    def number(self, kind: type, call: str, target: Any, args: tuple[Any, ...], least: float = -math.inf) -> Any:
        """A number that is found when the graph runs, as a symbol; ``call`` is the fx node's kind."""
        node = self.graph.create_node(call, target, args)
        self._note_origin(node)
        note_of_node(node, as_captured=True, is_number=True)
        number = self._numbers[node] = self.tracer.symbols.from_graph(node, kind, least)
        self.sizes.give(next(iter(expression_of(number).symbols())), node)
        return number

    def require(self, left: Any, symbol: str, right: Any) -> None:
        """A node that fails when a comparison of numbers does not hold; the call then runs as plain Python."""
        self.rely_on_data()
        self.call(require_holds, (self.sizes.node(left), symbol, self.sizes.node(right)))

    def rely_on_data(self) -> None:
        """Note that the graph fails where data is not as assumed, and that the call then begins anew."""
        if not self.tracer.options.assumes:
            self.tracer.stop("tensor_branch", "data is checked after a change that cannot be undone")
        self.tracer.assumptions.check_at_end(lambda: check_repeatable(self.graph.nodes, self.inputs))

    @property
    def relies_late(self) -> bool:
        """Whether it looks at data after it has changed an input."""
        return any(map(changes_inputs, until_last_check(self.graph.nodes)))

    def detached(self, value: TensorValue) -> torch.fx.Node:
        """A tensor without its history."""
        node = self.graph.create_node("call_method", "detach", (value.node,))
        node.meta["example_value"] = value.fake.outline()
        self._note_origin(node)
        return node

    def item(self, node: torch.fx.Node, index: int, fake: Fake) -> torch.fx.Node:
        """One of several results of a node."""
        taken = self.graph.create_node("call_function", operator.getitem, (node, index))
        taken.meta["example_value"] = fake.outline()
        return taken

    def _note_origin(self, node: torch.fx.Node) -> None:
        """Say where in the user's source the node comes from, in the form fx prints."""
        node.meta["stack_trace"] = self.tracer.running.origin()
        if innermost(self.tracer) is not None:
            facts = facts_of_call(node.target)
            if (facts.opaque and not facts.warns) or facts.has_effects or mark_of(node.target) is Mark.IN_GRAPH:
                self.tracer.stop("call_unknown", "Python that may warn is part of a graph where filters are changed")

    def _explain_failure(self, target: Any, failure: FakeFailure) -> None:
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        self.tracer.stop(*meaning_of(name, failure.error))

    def _result(self, node: torch.fx.Node, result: Any, tensors: Arguments) -> Value:
        if isinstance(result, Fake):
            if id(result) in tensors:
                return self._given_back(node, *tensors[id(result)])
            # The shape is what readers and backends look for; the meta tensor has no storage to keep alive.
            node.meta["example_value"] = result.outline()
            value = TensorValue(node, result)
            self.autograd.meet(node, value)
            return value
        if isinstance(result, fakes.Structured):
            return TupleValue(self._items(node, result.items, tensors), result.kind)
        if type(result) is tuple:
            return TupleValue(self._items(node, result, tensors))
        if type(result) is list:
            return ListValue(self._items(node, result, tensors))
        if result is None:
            return constant_value(None)
        # The result of any other (a device, a pointer, a number read from data) would be the fake's, not the tensor's.
        if ops.of_node(node).folds:
            self.graph.erase_node(node)
            return constant_value(result)
        self.tracer.stop("call_unknown", f"{node.target} returned a {type(result).__name__}")

    def _given_back(self, node: torch.fx.Node, own: TensorValue, version: int | None) -> Value:
        """The operation gave back its own argument: one object, one Value. Its node is the one that made or changed it
        (x.add_(1), not x.contiguous()): where a backward is divided at a tensor, all uses are behind that."""
        node.meta["example_value"] = own.fake.outline()
        now = torch_compat.version_of(own.fake.meta)
        call: Any = node.args[0] if node.target is operator.getitem else node  # of one of several results
        is_user_s = isinstance(call.target, ApplyFunction)
        is_changed = now is None or now != version or is_user_s or changes_something(call)
        if now or is_user_s:
            note_of_node(node, is_in_place=True)  # or something before it was; names do not tell all
        if is_changed:
            own.node = node
            self.autograd.meet(node, own)
        return own

    def _items(self, node: torch.fx.Node, results: Any, tensors: Arguments) -> list[Value]:
        return [
            self._result(self.graph.create_node("call_function", operator.getitem, (node, index)), item, tensors)
            for index, item in enumerate(results)
        ]

    def numbers(self) -> dict[torch.fx.Node, Any]:
        """What the nodes give that are numbers: those the graph takes, and those it reads from data."""
        return self.sizes.numbers(self.tracer.symbols.environment) | self._numbers

    def symbols(self) -> list[Symbol]:
        """The symbols the graph takes, before its tensors: those it computes with, and those in sizes of its inputs."""
        symbols = set(self.sizes.symbols)
        for value in self.inputs:
            if value.placeholder.users:
                meta = value.placeholder.meta["example_value"]
                symbols.update(*(expression_of(number).symbols() for number in (*meta.shape, *meta.stride())))
        return sorted(symbols, key=list(self.tracer.symbols.sources).index)

    def finish(self, outputs: list[torch.fx.Node]) -> torch.fx.GraphModule:
        """Close the graph over the tensors the program needs and drop inputs nothing reads."""
        self.graph.output(tuple(outputs))
        self._drop_left_behind()
        put_off_checks(self.graph)
        used = []
        for value in self.inputs:
            if value.placeholder.users:
                used.append(value)
            else:
                self.graph.erase_node(value.placeholder)
        self.inputs = used
        self.sizes.declare(self.symbols(), self.tracer.symbols.environment)
        return graph_module(self.graph)

    def _drop_left_behind(self) -> None:
        """Erase what only nodes with graphs of their own compute; the rest is computed twice, if that is the same."""
        for node in reversed(self.left_behind):
            if not node.users:
                self.graph.erase_node(node)
            elif may_draw(node) or changes_something(node):
                self.tracer.stop("escape", "a value leaves a function with a graph of its own by a side road")

    @property
    def last_node_or_none(self) -> torch.fx.Node | None:
        return next(iter(reversed(self.graph.nodes)), None)

    def nodes_after(self, node: torch.fx.Node | None) -> list[torch.fx.Node]:
        """The nodes, inputs aside, that were recorded after one of them."""
        nodes: list[torch.fx.Node] = []
        for later in reversed(self.graph.nodes):
            if later is node or later.op == "placeholder":
                break
            nodes.append(later)
        return nodes[::-1]

    @property
    def last_node(self) -> torch.fx.Node:
        return next(iter(reversed(self.graph.nodes)))

    def changes_after(self, node: torch.fx.Node) -> bool:
        """Whether something was changed in place after ``node`` was recorded."""
        for later in reversed(self.graph.nodes):
            if later is node:
                return False
            if changes_something(later):
                return True
        return False

    @property
    def changes_inputs(self) -> bool:
        """Whether running the graph twice would differ from running it once, as far as names tell."""
        return any(map(changes_inputs, self.graph.nodes))

    @property
    def has_effects(self) -> bool:
        """Whether it does something to the world that cannot be undone."""
        return any(map(acts_outside, self.graph.nodes))

    def until_it_acts(self) -> list[torch.fx.Node]:
        """The nodes before the first that does what cannot be undone: where they fail, plain Python runs the call."""
        return list(itertools.takewhile(lambda node: not acts_outside(node), self.graph.nodes))

    def written_inputs(self) -> list[list[int]]:
        """Positions of the inputs that operations write to before it acts, for each way in which they do
        (``changes.Written``)."""
        return self._written_by(self.until_it_acts())

    def written_early(self) -> set[int]:
        """Positions of the inputs that operations write to while another one may still raise, or may themselves."""
        nodes = self.until_it_acts()
        last = max((place for place, node in enumerate(nodes) if may_fail(node)), default=-1)
        return set(itertools.chain.from_iterable(self._written_by(nodes[: last + 1])))

    def _written_by(self, nodes: Sequence[torch.fx.Node]) -> list[list[int]]:
        inputs = [value.placeholder for value in self.used_inputs()]
        return [[index for index, node in enumerate(inputs) if node in roots] for roots in written_roots(nodes)]

    def used_inputs(self) -> list[TensorValue]:
        return [value for value in self.inputs if value.placeholder.users]

    @property
    def may_fail(self) -> bool:
        """Whether running the graph can raise although its guards hold."""
        return any(may_fail(node) for node in self.graph.nodes)

    @property
    def fails_late(self) -> bool:
        """Whether an operation may raise that writes to an input, or comes after one that does, before it acts."""
        nodes = self.until_it_acts()
        first = next((place for place, node in enumerate(nodes) if changes_inputs(node)), len(nodes))
        return any(map(may_fail, nodes[first:]))

    @property
    def breaks_off(self) -> bool:
        """Whether an operation may raise when it has written a part of an input, before it acts."""
        return any(changes_inputs(node) and may_fail(node) for node in self.until_it_acts())

    @property
    def may_draw(self) -> bool:
        """Whether some operation may draw random numbers."""
        return any(may_draw(node) for node in self.graph.nodes)

    @property
    def has_work(self) -> bool:
        """Whether it does more than to set modes and put them back."""
        return any(
            node.op not in ("placeholder", "output") and node.target not in MODE_STATEMENTS for node in self.graph.nodes
        )

    @property
    def leaves_all(self) -> bool:
        """Whether everything is as it was, should the graph fail although that is not known of any operation."""
        return self.has_work and not (self.may_fail or self.has_effects or self.changes_inputs or self.may_draw)

    @property
    def op_count(self) -> int:
        return sum(node.op not in ("placeholder", "output") for node in self.graph.nodes)


def _name_of(target: Any) -> str:
    """What an operation is called."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _keep_outlines(tensors: Iterable[TensorValue]) -> None:
    """Inputs stay known as they came in, where their sizes are about to be changed in place."""
    for value in tensors:
        shown = value.fake.meta
        if value.source is not None and value.placeholder.meta.get("example_value") is shown:
            value.placeholder.meta["example_value"] = shown.detach().requires_grad_(shown.requires_grad)
