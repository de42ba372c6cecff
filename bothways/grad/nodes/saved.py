"""What a node has saved, as far as a backward through some of its results needs it.

Eager has a node for each operation, and a backward looks at what those have saved that it comes to. One node stands for
all of them here: where something was changed in place, or freed, it matters only to backwards that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import torch

from bothways import torch_compat
from bothways.grad.halves.pieces import Outline, Pieces, asked_for

Gradients = Sequence[torch.Tensor | None]


class Saving(Protocol):
    """What is known of a graph about what its node saves."""

    pieces: Pieces | None
    outlines: list[Outline] | None
    live: tuple[int, ...]
    own_versions: dict[int, int]

    def read_values(
        self, tangents: Gradients, inputs: Sequence[torch.Tensor], wanted: tuple[bool, ...] | None = None
    ) -> Collection[int]: ...


# All inputs of the forward, from what was saved.
Inputs = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Saved(NamedTuple):
    """What a node saved, and the error of a backward that would read all of it."""

    values: list[torch.Tensor]
    refusal: RuntimeError | None = None


def saved_values(
    ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: tuple[bool, ...] | None
) -> Saved:
    """What the forward saved; raises where eager has freed it, or where it was changed and the backward reads it.

    A backward through some of the results, or by the ``wanted`` inputs alone, leaves what others need, as far as eager
    saves it apart. Without ``inputs`` nothing may be changed, read or not.
    """
    pieces = graph.pieces
    if pieces is None:
        return _unpacked(ctx, graph, tangents, inputs)
    results, asked = asked_for(tangents, wanted)
    run = pieces.between(results, asked)
    if ctx.kept is not None and not run & ctx.used:
        saved = _kept(ctx, graph, tangents, inputs)
    elif run:
        saved = _unpacked(ctx, graph, tangents, inputs)
    else:
        saved = _unread(ctx, graph, tangents, inputs, wanted)
    if not torch_compat.graph_is_retained():
        ctx.used |= run
        ctx.kept = [(value, value._version) for value in saved.values] if pieces.is_left(ctx.used, asked) else None
        if graph.outlines is None:
            graph.outlines = [(value.shape, value.stride(), value.dtype, value.device) for value in saved.values]
    return saved


def _unread(
    ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: tuple[bool, ...] | None
) -> Saved:
    """What was saved, for a backward that comes to none of eager's nodes that save: any tensors where it was freed."""
    try:
        return Saved(list(ctx.saved_tensors))
    except RuntimeError:
        if graph.outlines is None or inputs is None:
            raise
        values = [torch.empty_strided(*place, dtype=dtype, device=device) for *place, dtype, device in graph.outlines]
        if _read(graph, tangents, inputs(values), wanted):
            raise
        return Saved(values)


def _unpacked(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None) -> Saved:
    try:
        return Saved(list(ctx.saved_tensors))
    except RuntimeError as error:
        saved = torch_compat.unchecked_saved_tensors(ctx, ctx.saved_versions)
        if saved is None or inputs is None:
            raise
        values = [value for value, _ in saved]
        for place in _read(graph, tangents, inputs(values)):
            value, is_unchanged = saved[place]
            own = graph.own_versions.get(place)
            if value._version != own if own is not None else not is_unchanged():
                raise
        return Saved(values, error)


def _kept(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None) -> Saved:
    """What was left by a backward through other results."""
    values = [value for value, _ in ctx.kept]
    changed = [place for place, (value, version) in enumerate(ctx.kept) if value._version != version]
    if not changed:
        return Saved(values)
    refusal = changed_error(*ctx.kept[changed[0]])
    if inputs is None or not set(changed).isdisjoint(_read(graph, tangents, inputs(values))):
        raise refusal
    return Saved(values, refusal)


def _read(
    graph: Saving, tangents: Gradients, inputs: Sequence[torch.Tensor], wanted: tuple[bool, ...] | None = None
) -> list[int]:
    """The places, among what was saved, of what a backward for these gradients reads."""
    read = graph.read_values(tangents, inputs, wanted)
    count = max(read, default=-1) + 1
    places = {position: place for place, position in enumerate(p for p in range(count) if p not in graph.live)}
    return [places[position] for position in sorted(read) if position in places]


_VERSION = attrgetter("_version")


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """How often each was changed in place; those of inference mode do not count."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return list(map(torch_compat.version_of, tensors))


def check_unchanged(tensor: torch.Tensor, version: int | None) -> None:
    """Raise as autograd does when a tensor that the backward needs was changed since the forward. One without a
    ``version`` passes."""
    if version is not None and tensor._version != version:
        raise changed_error(tensor, version)


def changed_error(tensor: torch.Tensor, version: int) -> RuntimeError:
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
        "instead."
    )
