"""What a graph's node has to know of its differentiation besides the programs, as data that can be written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch.fx

from bothways import torch_compat
from bothways.grad.halves.partition import (
    live_values,
    needed_inputs,
    new_values,
    owners_of,
    reachable,
    window_inputs,
)
from bothways.grad.halves.pieces import bits
from bothways.grad.tracing.traced import DATA, DETACH, Joint, Output, Result, ResultView, does_more


class FactMemo(Protocol):
    """Remembers, between processes, how something was differentiated: facts, and programs by their keys."""

    def part(self, *names: str) -> FactMemo: ...
    def recall(self) -> Any: ...
    def note(self, facts: Any) -> None: ...
    def forget(self) -> None: ...
    def program(self, key: str, takes: int, gives: int) -> Callable[..., Any] | None: ...


@dataclass(frozen=True)
class Facts:
    """How outputs come from results, and what the backward, if there is one, needs.

    ``saved_positions`` name forward values by their place in the trace: all traces of one function agree on the
    forward, operation by operation. ``counts`` says how often each of the ``changed`` inputs is: so much its
    version grows, not at all where that is done to its ``.data``; ``versions`` are those of the results, of which some
    are ``views`` in eager, and the
    ``recounted`` inputs are those whose versions grow while their elements stay, each as often as it does. Of the
    ``window_inputs`` eager saves windows on their memory. ``read_inputs`` are those that the forward reads;
    ``strange_inputs`` those that no backward comes to, ``uneven_inputs`` those that it comes to from some of the
    differentiable results only; ``statistics_inputs`` are changed by operations that do not say so; on what is in the
    ``unread_inputs`` no gradient
    depends. Among the needed inputs and what is saved, numbered in that order, the ``live`` ones are read as they are
    when the backward runs; those at ``new_positions`` are the ``new_inputs``, after their change, and those at
    ``own_positions`` are results, or what one may be as a view, of these ``own_versions`` when they are saved. A trace
    ``is_turned`` when images lie in it as convolutions like them best; all traces of the function then are. Eager's
    backward comes to inputs in the ``leaf_order``. ``pieces`` and ``leads`` are those of ``Pieces``.
    """

    outputs: list[Output]
    has_backward: bool
    differentiable: tuple[bool, ...]
    pieces: tuple[int, ...]
    leads: tuple[int, ...]
    changed: tuple[int, ...]
    counts: tuple[int, ...]
    versions: tuple[int, ...]
    is_random: bool
    needed_inputs: tuple[int, ...]
    window_inputs: tuple[int, ...]
    saved_positions: tuple[int, ...]
    read_inputs: tuple[int, ...]
    strange_inputs: tuple[int, ...]
    uneven_inputs: tuple[int, ...]
    statistics_inputs: tuple[int, ...]
    unread_inputs: tuple[int, ...]
    live: tuple[int, ...]
    new_positions: tuple[int, ...]
    new_inputs: tuple[int, ...]
    is_turned: bool
    recounted: tuple[int, ...]
    own_positions: tuple[int, ...]
    own_versions: tuple[int, ...]
    views: tuple[bool, ...]
    leaf_order: tuple[int, ...]

    def to_data(self) -> dict[str, Any] | None:
        """As JSON can hold it; None when an output is a view that only its trace knows how to take."""
        outputs: list[tuple[str, int] | None] = []
        for output in self.outputs:
            match output:
                case None:
                    outputs.append(None)
                case Result(index):
                    outputs.append(("result", index))
                case ResultView(of_input=of_input, base=base, window=None, by=by):
                    outputs.append((f"{by} of input" if of_input else f"{by} of result", base))
                case _:
                    return None
        return {**vars(self), "outputs": outputs}


def facts_of(joint: Joint, graph: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], has_backward: bool) -> Facts:
    """The facts of a trace whose forward is ``graph``, which returns ``saved`` as well."""
    places = {node: index for index, node in enumerate(joint.recorder.graph.nodes)}
    tensors = [node for node in graph.graph.nodes if node.op == "placeholder"][len(joint.sizes.symbols) :]
    pairs = list(zip(joint.reached, joint.differentiable, strict=True))[: len(joint.results) - joint.hidden]
    reached = [behind for behind, moves in pairs if moves]
    anywhere, everywhere = frozenset().union(*reached), frozenset(range(len(joint.primals))).intersection(*reached)
    needed = needed_inputs(joint) if has_backward else ()
    kept = [*(joint.primals[index] for index in needed), *saved]
    live, new = _kept_outside(joint, kept)
    own = _own_versions(joint, kept)
    return Facts(
        joint.outputs, has_backward, joint.differentiable, joint.pieces, _leads(joint),
        tuple(joint.updates), joint.counts, joint.versions,
        bool(joint.random_nodes),
        needed, window_inputs(joint) if has_backward else (),
        tuple(places[node] - len(joint.tangents) for node in saved),
        tuple(index for index, node in enumerate(tensors) if node.users),
        tuple(index for index in range(len(joint.primals)) if index not in anywhere),
        tuple(sorted(anywhere - everywhere)), _statistics_inputs(joint),
        _unread_inputs(joint), live, tuple(new), tuple(new.values()), joint.is_turned, joint.recounted,
        tuple(own), tuple(own.values()), joint.views, joint.leaf_order,
    )  # fmt: skip


def _own_versions(joint: Joint, kept: Sequence[torch.fx.Node]) -> dict[int, int]:
    """The positions of results among what is kept, with their versions. A view of a whole value leaves kernels as that
    value."""
    owners, pairs = owners_of(joint), list(zip(joint.results, joint.versions, strict=True))
    viewed = {owners[node]: version for node, version in pairs if owners[node].op == "call_function"}
    numbers = {**viewed, **dict(pairs)}
    return {position: numbers[node] for position, node in enumerate(kept) if node in numbers}


def _leads(joint: Joint) -> tuple[int, ...]:
    pairs = zip(joint.reached, joint.differentiable, strict=True)
    return tuple(bits(behind) if moves else 0 for behind, moves in pairs)


def _kept_outside(joint: Joint, kept: Sequence[torch.fx.Node]) -> tuple[tuple[int, ...], dict[int, int]]:
    """Where people hold what is kept, too: what is live, and what the new values of inputs are."""
    if not joint.keeping.reads_outside:
        return (), {}
    owners = owners_of(joint)
    live, new = live_values(joint, owners), new_values(joint, owners)
    return (
        tuple(position for position, node in enumerate(kept) if node in live),
        {position: new[node] for position, node in enumerate(kept) if node in new},
    )


def _unread_inputs(joint: Joint) -> tuple[int, ...]:
    kept = (read for node in joint.kept_nodes for read in _looked_at(node))
    read = reachable([*(node for node in joint.gradients if node is not None), *kept], frozenset())
    return tuple(index for index, node in enumerate(joint.primals) if node not in read)


def _looked_at(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """What an operation looks at that is kept for what it does besides: one that checks its indices, at these alone."""
    if not does_more(node):
        return [one for one in node.all_input_nodes if not _has_fractions(one.meta.get("val"))]
    return [node]


def _has_fractions(value: Any) -> bool:
    """Whether something is a tensor that cannot be an index."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _statistics_inputs(joint: Joint) -> tuple[int, ...]:
    """The running statistics among the inputs: a batch norm updates them although its schema does not mention it."""
    statistics: set[torch.fx.Node] = set()
    for node in joint.forward_nodes:
        schema = torch_compat.schema_of(node.target)
        named = zip(() if schema is None else schema.arguments, node.args, strict=False)
        arguments = [value for argument, value in named if argument.name in ("running_mean", "running_var")]
        statistics.update(value for value in arguments if isinstance(value, torch.fx.Node))
    return tuple(index for index, node in enumerate(joint.primals) if node in statistics)


def facts_from(data: dict[str, Any]) -> Facts:
    """The facts that ``to_data`` wrote down."""
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
    outputs = [None if output is None else _OUTPUTS[output[0]](output[1]) for output in data["outputs"]]
    return Facts(**{**data, **lists, "outputs": outputs})


_OUTPUTS: dict[str, Callable[[int], Output]] = {
    "result": Result,
    **{f"{by} of input": partial(ResultView, True, by=by) for by in ("", DETACH, DATA)},
    **{f"{by} of result": partial(ResultView, False, by=by) for by in (DETACH, DATA)},
}
