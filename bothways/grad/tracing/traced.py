"""What a trace of forward and backward gives: one graph, and how outputs, updates and gradients come from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.grad.tracing.keeping import NOTHING_KEPT, Keeping
from bothways.grad.tracing.sizes import FIXED, Sizes
from bothways.grad.tracing.trace import Recorder
from bothways.runtime.picking import Picker, picker


class NotDifferentiable(Exception):
    """The graph does something the differentiator does not express."""


class NotForAllSizes(NotDifferentiable):
    """Some formula wants to know sizes that are symbols."""


class ChangesGradient(NotDifferentiable):
    """An input is changed that has a gradient, or has one afterwards."""


class ChangesInPlace(NotDifferentiable):
    """Inputs are changed, there is no gradient, and no kernel either that would do it faster than ATen in place."""


class ReadsData(NotDifferentiable):
    """An operation of a captured graph has to see data: it runs as captured."""

    def __init__(self, node: torch.fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


class IndependentResults(NotDifferentiable):
    """The function is several functions side by side; ``groups`` holds the outputs of each."""

    def __init__(self, groups: list[list[int]]) -> None:
        super().__init__("results that share no computation are differentiated apart")
        self.groups = groups


# The number of this call that a symbolic size stands for.
SizeNow = Callable[[Any], int]


DETACH, DATA = "detach", "data"  # the same tensor without its history, with its versions and without


@dataclass(frozen=True, eq=False)
class ResultView:
    """An output that is a window on other memory: on an input, or on one of the graph's own results.

    ``window`` is the output as it was traced; it knows the operations that lead to it, which are taken again. None
    stands for the whole. What it is a window on is the input or result itself, or the same ``by`` ``detach`` or
    ``data``.
    """

    of_input: bool
    base: int
    window: torch.Tensor | None = None
    no_grad: bool = False
    by: str = ""

    def take(self, inputs: Sequence[torch.Tensor], results: Sequence[Any], size: SizeNow | None) -> torch.Tensor:
        base: torch.Tensor = inputs[self.base] if self.of_input else results[self.base]
        base = base.detach() if self.by == DETACH else base.data if self.by == DATA else base
        if self.window is None:
            return base
        if self.no_grad:
            with torch.no_grad():
                return torch_compat.view_again(self.window, base, size)
        return torch_compat.view_again(self.window, base, size)


@dataclass(frozen=True)
class Result:
    """An output that the graph computes: its position among the graph's results."""

    index: int


Output = ResultView | Result | None
Strides = tuple[tuple[int, ...] | None, ...]
Variables = dict[torch.fx.Node, torch.Tensor]


class Moment(NamedTuple):
    """What a backward meets when it runs, and depends on.

    ``strides`` are those of the gradient each result receives, None for those that receive none; by default every
    differentiable result receives one laid out like itself. ``autocast`` is ``torch_compat.autocast_now()``; ``again``
    says that the gradients are differentiated in turn, for which eager has other formulas here and there.
    """

    strides: Strides | None = None
    autocast: tuple[object, ...] | None = None
    again: bool = False


USUAL = Moment()


@dataclass
class Joint:
    """Forward and backward in one graph. ``outputs`` says how each output comes from ``results``.

    The ``pieces`` are the nodes of eager's that save something, each as the results behind which it lies and the inputs
    to which it leads, as bits: a backward uses up those it goes through. ``reached`` are the inputs that autograd
    finds behind each result: in eager a backward through the others does not come near them. ``counts``
    says how often each of the inputs that are updated was changed: by so much its version grows, and not at all where
    that was done to its ``.data``. Of the ``recounted`` inputs the version grows though no element changes, once for
    each time they are there: the shape of a view was changed in place. The last results, as many as
    ``hidden`` says, are no outputs: a backward that is differentiated again reads them. ``stand_ins`` are values laid
    out in another way, with those that eager has, and saves, in their place. ``keeping`` is what eager keeps besides.
    """

    recorder: Recorder
    primals: list[torch.fx.Node]
    results: list[torch.fx.Node]
    outputs: list[Output]
    updates: dict[int, torch.fx.Node]
    counts: tuple[int, ...]
    versions: tuple[int, ...]  # of the results
    differentiable: tuple[bool, ...]
    pieces: tuple[int, ...]
    reached: tuple[frozenset[int], ...]
    forward_nodes: frozenset[torch.fx.Node]
    tangents: list[torch.fx.Node] = field(default_factory=list)
    tangent_strides: Strides = ()
    moment: Moment = USUAL
    gradients: list[torch.fx.Node | None] = field(default_factory=list)
    sizes: Sizes = FIXED
    is_turned: bool = False  # whether images lie otherwise than the captured function's
    hidden: int = 0
    variables: Variables = field(default_factory=dict)
    stand_ins: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    keeping: Keeping = NOTHING_KEPT
    recounted: tuple[int, ...] = ()
    views: tuple[bool, ...] = ()  # of the results, whether each is a view in eager
    leaf_order: tuple[int, ...] = ()  # the inputs in the order in which eager's backward comes to them

    @property
    def kept_nodes(self) -> list[torch.fx.Node]:
        """Forward operations that run even if nothing reads them: they draw random numbers, check and raise, or update
        running statistics."""
        return [
            node
            for node in self.recorder.graph.nodes
            if node in self.forward_nodes and (does_more(node) or ops.of(node.target).checks_indexes)
        ]

    def chosen_gradients(self, wanted: Sequence[bool] | None) -> list[torch.fx.Node | None]:
        """The gradients, None in the place of those that are not wanted."""
        if wanted is None:
            return self.gradients
        return [node if want else None for node, want in zip(self.gradients, wanted, strict=True)]

    @property
    def random_nodes(self) -> list[torch.fx.Node]:
        return [node for node in self.recorder.graph.nodes if node in self.forward_nodes and _is_random(node)]


def does_more(node: torch.fx.Node) -> bool:
    """Whether an operation does something besides giving its results and checking its indices."""
    return bool(_is_random(node) or _returns_nothing(node) or updated_by(node))


def check_layouts(joint: Joint, expected: Sequence[torch.Tensor | None]) -> None:
    """Raise when an operation in place, which became one out of place, made an output of another layout."""
    for output, like in zip(joint.outputs, expected, strict=False):
        if isinstance(output, Result) and like is not None:
            value = joint.results[output.index].meta["val"]
            steps = zip(value.shape, value.stride(), like.stride(), strict=True)
            if any(size > 1 and step != other for size, step, other in steps):
                raise NotDifferentiable(f"an output has strides {value.stride()} instead of {like.stride()}")


def take_outputs(
    outputs: list[Output], inputs: Sequence[torch.Tensor], results: Sequence[Any], size: SizeNow | None = None
) -> tuple[Any, ...]:
    """The outputs of the original function from what the graph returned; views have the sizes of this call."""
    return tuple(_take(output, inputs, results, size) for output in outputs)


def taking_results(outputs: Sequence[Output]) -> Picker | None:
    """What gives the outputs where all are results as they are; None where some are something else."""
    results = [output.index for output in outputs if isinstance(output, Result)]
    return picker(results) if len(results) == len(outputs) else None


def _take(output: Output, inputs: Sequence[torch.Tensor], results: Sequence[Any], size: SizeNow | None) -> Any:
    if output is None:
        return None
    return results[output.index] if isinstance(output, Result) else output.take(inputs, results, size)


def takes_windows(outputs: Sequence[Output]) -> bool:
    """Whether one of the outputs is a view that has sizes of its own."""
    return any(isinstance(output, ResultView) and output.window is not None for output in outputs)


_MOMENTUM = ("momentum", "exponential_average_factor")  # how operations call it that update; their backwards have none


def updated_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics that a normalisation updates, although its schema does not mention it."""
    schema = torch_compat.schema_of(node.target)
    arguments = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) if schema else {}
    if arguments.get("training", True) is not True or arguments.keys().isdisjoint(_MOMENTUM):
        return []
    statistics = (arguments.get(name) for name in ("running_mean", "running_var"))
    return [value for value in statistics if isinstance(value, torch.fx.Node)]


def _returns_nothing(node: torch.fx.Node) -> bool:
    schema = torch_compat.schema_of(node.target)
    return schema is not None and not schema.returns


def _is_random(node: torch.fx.Node) -> bool:
    """Whether the operation draws random numbers; attention without dropout does not."""
    if not ops.of(node.target).draws:
        return False
    schema = torch_compat.schema_of(node.target)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            probability = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(probability != 0.0)
    return True
