"""Writes down what the engine would run: instructions, node by node, and then a ``torch.fx`` graph of them.

The engine passes tensors around that stand for gradients and for what nodes saved; each was given by us, and means
the result of an instruction. Nothing is computed here, and no hook runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.backward import compiled_nodes, custom, formulas, steps
from bothways.grad.nodes.node import CompiledNode
from bothways.symbols import SYMBOLIC, Environment, SizeNodes, Symbol
from bothways.symbols.node import symbol_number
from bothways.torch_compat.backward_engine import FORMULAS, Tensors, Wanted, function_of

# What a captured backward takes.
PARAMETERS = ("inputs", "sizes", "scalars", "hooks", "packed")


class NoZeros(torch_compat.DispatchMode):
    """C++ makes zeros for gradients that a custom backward does not get, and cannot where sizes are symbols.

    Programs make their own; any tensor will do.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.zeros.default:
            return torch.empty(0)
        return function(*args, **(kwargs or {}))


@dataclass(eq=False)
class ProgramCall:
    """A call that the program makes; its arguments hold stand-ins and ``ProgramInput``."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    group: int
    fx_node: Any = None


@dataclass(frozen=True)
class ProgramInput:
    """Something the program is given: which of its parameters, and the place in it."""

    parameter: str
    place: int


@dataclass(frozen=True)
class CallResult:
    """One of the results of an instruction, or all that it returns."""

    instruction: ProgramCall
    place: int | None


@dataclass(frozen=True)
class GradientSum:
    """Gradients that reach one tensor from several sides, in the order in which the engine met them."""

    parts: tuple[torch.Tensor, ...]


@dataclass
class NodeCalls:
    """What one node of the autograd graph comes to."""

    name: str
    instructions: list[ProgramCall] = field(default_factory=list)


class BackwardRecorder:
    """One backward, while the engine hands it over."""

    def __init__(self, finish: Callable[[BackwardRecorder, Tensors], tuple[Callable[..., Any], Any]]) -> None:
        self._finish = finish
        # Why no program can do this. It is said in the end: till then C++ has put stand-ins into the nodes.
        self.refusal: str | None = None
        self.groups: list[NodeCalls] = []
        # Where among the hooks are nodes of custom functions, and where among the inputs is what compiled ones saved.
        self.custom_nodes: dict[int, list[int] | None] = {}
        # The hooks of tensors that no gradient comes to.
        self.unreached: set[int] = set()
        self.environment = Environment()
        self.size_symbols: list[Symbol] = []
        self.scalar_symbols: list[Symbol] = []
        self._meaning: dict[int, ProgramInput | CallResult | GradientSum] = {}
        self._kept: list[torch.Tensor] = []
        self._zeros, self._has_zeros = NoZeros(), False

    # What the engine tells.

    def begin(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> Any:
        stand_ins = [self._stand_in(ProgramInput("inputs", place)) for place, _ in enumerate(inputs)]
        numbers = [self._number(value, self.size_symbols) for value in sizes]
        if numbers:
            self._zeros.__enter__()
            self._has_zeros = True  # where the engine fails, it takes the mode away itself
        return stand_ins, numbers, [self._number(value, self.scalar_symbols) for value in scalars]

    def node(self, name: str) -> None:
        self.groups.append(NodeCalls(name))

    def formula(self, name: str, grads: Tensors, args: Sequence[Any], wanted: Wanted) -> Tensors:
        return self._call(self._formula(name), (list(grads), *args), [one is not None for one in wanted])

    def _formula(self, name: str) -> Callable[..., Any]:
        if name in FORMULAS:
            return formulas.formula(name)
        # C++ has told its name to another compiler in this process, and does so once.
        self.refusal = f"the formula of {name} belongs to another compiler"
        return steps.add

    def check(self, grads: Tensors, wanted: Wanted) -> Tensors:
        if not grads:
            return []
        self._formula("validate_outputs")
        pairs = zip(grads, wanted, strict=True)
        defined = [grad is not None and one is not None for grad, one in pairs]
        return self._call(steps.check, (list(grads), list(wanted)), defined)

    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        parts = tuple(part for one in (left, right) for part in self._parts(one))
        return self._stand_in(GradientSum(parts))

    def custom(self, grads: Tensors, wanted: Wanted, saved: Sequence[Any], place: int, node: Any) -> Tensors:
        if isinstance(function_of(node), type) and issubclass(function_of(node), CompiledNode):
            return self._compiled(grads, wanted, saved, place)
        # Gradients that did not arrive come as zeros that C++ has made; the program makes its own.
        arrived = [grad if self.meaning_of(grad) is not None else None for grad in grads]
        self.custom_nodes[place] = None
        needs, takes = tuple(node.needs_input_grad), [one is not None for one in wanted]
        materializes = all(grad is not None for grad in grads)
        args = (ProgramInput("hooks", place), list(saved), arrived, needs, takes, materializes)
        return self._call(custom.custom, args, takes)

    def _compiled(self, grads: Tensors, wanted: Wanted, saved: Sequence[Any], place: int) -> Tensors:
        meanings = [self.meaning_of(one) for one in saved]
        self.custom_nodes[place] = [one.place for one in meanings if isinstance(one, ProgramInput)]
        outlines = [None if one is None else (list(one[3]), one[2], one[1]) for one in wanted]
        args = (ProgramInput("hooks", place), list(saved), list(grads), outlines)
        return self._call(compiled_nodes.compiled_node, args, [one is not None for one in wanted])

    def accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return self._stand_in(CallResult(self._instruction(steps.accumulate, (leaf, grad)), None))

    def tensor_hook(self, grads: Tensors, hook: int, place: int) -> Tensors:
        if grads[place] is None:
            self.unreached.add(hook)
        return self._call(steps.tensor_hook, (ProgramInput("hooks", hook), list(grads), place), present(grads))

    def cpp_hook(self, grads: Tensors, hook: int, place: int) -> Tensors:
        call = self._instruction(formulas.cpp_hook, (hook, grads[place]))
        results = list(grads)
        results[place] = self._stand_in(CallResult(call, None))
        return results

    def pre_hook(self, grads: Tensors, hook: int) -> Tensors:
        return self._call(steps.pre_hook, (ProgramInput("hooks", hook), list(grads)), present(grads))

    def post_hook(self, results: Tensors, grads: Tensors, hook: int) -> Tensors:
        return self._call(steps.post_hook, (ProgramInput("hooks", hook), list(results), list(grads)), present(results))

    def leaf_hook(self, leaf: torch.Tensor, hook: int) -> None:
        self._instruction(steps.leaf_hook, (ProgramInput("hooks", hook), leaf))

    def unpack(self, hook: int | None, packed: int) -> torch.Tensor:
        assert hook is not None
        call = self._instruction(steps.unpack, (ProgramInput("hooks", hook), ProgramInput("packed", packed)))
        return self._stand_in(CallResult(call, None))

    def begin_slices(self, grads: Tensors, base: Any, view: Any) -> Tensors:
        return self._call(steps.begin_slices, (list(grads), plain(base), plain(view)), [True, True, True])

    def end_slices(self, wanted: Sequence[bool], whole: Any, results: Tensors, part: Any) -> Tensors:
        known = [is_wanted and result is not None for is_wanted, result in zip(wanted, results, strict=False)]
        return self._call(steps.end_slices, (list(wanted), whole, list(results), part), known)

    def end(self, outputs: Tensors) -> tuple[Callable[..., Any], Any]:
        self.leave()
        return self._finish(self, outputs)

    def leave(self) -> None:
        """Let the thread make its own zeros again."""
        if self._has_zeros:
            self._has_zeros = False
            if torch_compat.dispatch_mode_depth():
                self._zeros.__exit__(None, None, None)

    # What the stand-ins mean.

    def _stand_in(self, meaning: ProgramInput | CallResult | GradientSum) -> torch.Tensor:
        tensor = torch.empty(0)
        self._kept.append(tensor)  # as long as it is here, no other tensor has its id
        self._meaning[id(tensor)] = meaning
        return tensor

    def _number(self, value: Any, symbols: list[Symbol]) -> Any:
        symbol = self.environment.symbol(value, 0 if symbols is self.size_symbols else -math.inf)
        symbols.append(symbol)
        return symbol_number(self.environment, symbol)

    def _instruction(self, target: Callable[..., Any], args: tuple[Any, ...]) -> ProgramCall:
        call = ProgramCall(target, args, len(self.groups) - 1)
        self.groups[-1].instructions.append(call)
        return call

    def _call(self, target: Callable[..., Any], args: tuple[Any, ...], defined: Sequence[bool]) -> Tensors:
        """An instruction that gives a list, with tensors where there can be some."""
        call = self._instruction(target, args)
        return [self._stand_in(CallResult(call, place)) if is_there else None for place, is_there in enumerate(defined)]

    def _parts(self, stand_in: torch.Tensor) -> tuple[torch.Tensor, ...]:
        meaning = self._meaning.get(id(stand_in))
        return meaning.parts if isinstance(meaning, GradientSum) else (stand_in,)

    def meaning_of(self, stand_in: torch.Tensor | None) -> ProgramInput | CallResult | GradientSum | None:
        return self._meaning.get(id(stand_in))


def present(grads: Tensors) -> list[bool]:
    return [grad is not None for grad in grads]


def plain(layout: Any) -> Any:
    """Sizes, strides and offset as a graph holds them."""
    sizes, strides, offset = layout
    return [list(sizes), list(strides), offset]


class Writer:
    """Turns instructions into the graph of a module, in an order of its own."""

    def __init__(self, recorder: BackwardRecorder) -> None:
        self.recorder, self.graph, self.root = recorder, torch.fx.Graph(), torch.nn.Module()
        self._given = {name: self.graph.placeholder(name) for name in PARAMETERS}
        self._items: dict[Any, torch.fx.Node] = {}
        self._sums: dict[int, torch.fx.Node] = {}
        self._sizes = SizeNodes(self.graph)
        self._constants = 0
        for place, symbol in enumerate(recorder.size_symbols):
            self._sizes.give(symbol, self._taken(ProgramInput("sizes", place)))
        for place, symbol in enumerate(recorder.scalar_symbols):
            self._sizes.give(symbol, self._taken(ProgramInput("scalars", place)))

    def write(self, order: Sequence[int], outputs: Tensors) -> torch.fx.GraphModule:
        """The module that makes the calls of each group, the groups in the given order."""
        rank = {group: place for place, group in enumerate(order)}
        self._rank = rank
        for group in order:
            for instruction in self.recorder.groups[group].instructions:
                args = tuple(self._argument(arg) for arg in instruction.args)
                instruction.fx_node = self.graph.call_function(instruction.target, args)
        self.graph.output([self._argument(output) for output in outputs])
        return torch.fx.GraphModule(self.root, self.graph, "CapturedBackward")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, ProgramInput):
            return self._taken(value)
        if isinstance(value, SYMBOLIC):
            return self._sizes.node(value)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
            kind = list if type(value) is list else tuple
            return kind(self._argument(item) for item in value)
        return value

    def _tensor(self, stand_in: torch.Tensor) -> torch.fx.Node:
        meaning = self.recorder.meaning_of(stand_in)
        if isinstance(meaning, ProgramInput):
            return self._taken(meaning)
        if isinstance(meaning, CallResult):
            return self._result(meaning)
        if isinstance(meaning, GradientSum):
            if id(stand_in) not in self._sums:
                first, *others = sorted(map(self.recorder.meaning_of, meaning.parts), key=self._when)
                total = self._result(first)
                for other in others:
                    total = self.graph.call_function(steps.add, (total, self._result(other)))
                self._sums[id(stand_in)] = total
            return self._sums[id(stand_in)]
        name = f"constant_{self._constants}"  # made by C++ on the way
        self._constants += 1
        self.root.register_buffer(name, stand_in)
        return self.graph.get_attr(name)

    def _when(self, meaning: Any) -> int:
        return self._rank[meaning.instruction.group] if isinstance(meaning, CallResult) else -1

    def _result(self, meaning: Any) -> torch.fx.Node:
        if isinstance(meaning, ProgramInput):
            return self._taken(meaning)
        if meaning.place is None:
            whole: torch.fx.Node = meaning.instruction.fx_node
            return whole
        if meaning not in self._items:
            self._items[meaning] = self.graph.call_function(
                operator.getitem, (meaning.instruction.fx_node, meaning.place)
            )
        return self._items[meaning]

    def _taken(self, taken: ProgramInput) -> torch.fx.Node:
        if taken not in self._items:
            parameter = self._given[taken.parameter]
            self._items[taken] = self.graph.call_function(operator.getitem, (parameter, taken.place))
        return self._items[taken]
