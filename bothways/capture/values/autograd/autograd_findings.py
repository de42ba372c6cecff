"""What looking at the bodies of a custom function tells: one call of ``apply``, its forward, its backward.

Bodies are interpreted on the side, by a tracer of their own (``code/looking.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways.capture.guards.guards import Guard
from bothways.capture.values.autograd.autograd_arguments import StandIns
from bothways.capture.values.autograd.autograd_contexts import FunctionContextValue
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Value
from bothways.capture.values.objects.objects import lookup
from bothways.capture.writing.definitions import Definitions
from bothways.node_facts import facts_of_call
from bothways.runtime.nodes import ApplyFunction

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@dataclass
class FunctionCall:
    """One call of ``cls.apply`` while it is captured."""

    tracer: Tracer
    cls: Any
    inputs: Args
    wants_grad: bool
    backward_reads: list[Guard] = field(default_factory=list)  # to be checked when the backward runs
    backward_definitions: list[Definitions] = field(default_factory=list)  # likewise
    backward: BackwardFindings | None = None  # with gradients for all results

    @property
    def name(self) -> str:
        return str(self.cls.__name__)

    @property
    def has_jvp(self) -> bool:
        """Whether the user gives the forward-mode derivative, which only the real function has."""
        return lookup(self.cls, "jvp") is not lookup(torch.autograd.Function, "jvp")


@dataclass
class ForwardFindings:
    """What interpreting forward told."""

    side: Tracer
    stand_ins: StandIns
    context: FunctionContextValue
    output: Value
    held: list[Value]  # what ctx holds
    result_nodes: list[torch.fx.Node | None]  # of the side graph, for the results that are tensors
    saved_nodes: list[torch.fx.Node]  # likewise, for the tensors that ctx saved

    @property
    def outputs(self) -> Args:
        items = self.output.items if isinstance(self.output, TupleValue) else [self.output]
        return [item.realize() for item in items]


@dataclass
class BackwardFindings:
    """What interpreting backward told."""

    side: Tracer
    gradients: Args
    result: Value
    reads: list[Guard]  # what it assumes that may be otherwise when it runs
    fits: bool  # whether autograd accepts the gradients
    changes_context: bool


def is_stateful(side: Tracer) -> bool:
    """Whether the code reads tensors that it was not given, changes an object, or runs the user's Python itself."""
    return (
        bool(side.graph.inputs)
        or bool(side.effects)
        or linked.COMPILED in side.assumptions.asked
        or any(_needs_memory(node.target) for node in side.graph.graph.nodes)
    )


def _needs_memory(target: Any) -> bool:
    """Whether what a node calls may only run where the program does, as a launch of the user's kernel.

    Of a custom function inside, that is what its forward is; its backward does not run here.
    """
    if isinstance(target, ApplyFunction):
        return target.stateful
    return facts_of_call(target).opaque
