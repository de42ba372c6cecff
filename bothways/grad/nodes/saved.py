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
Wanted = tuple[bool, ...] | None


class Saving(Protocol):
    """What is known of a graph about what its node saves."""

    pieces: Pieces | None
    outlines: list[Outline] | None
    live: tuple[int, ...]
    own_versions: dict[int, int]

    def read_values(
        self, tangents: Gradients, inputs: Sequence[torch.Tensor], wanted: Wanted = None
    ) -> Collection[int]: ...


# All inputs of the forward, from what was saved.
Inputs = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Saved(NamedTuple):
    """What a node saved, and the error of a backward that would read all of it."""

    values: list[torch.Tensor]
    refusal: RuntimeError | None = None
    versions: Sequence[int] | None = None  # that the values should have; None where they do
    is_there: bool = True  # or nothing but the outlines are


def saved_values(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: Wanted) -> Saved:
    """What the forward saved; raises where eager has freed it, or where it was changed and the backward reads it.

    A backward through some of the results, or by the ``wanted`` inputs alone, leaves what others need, as far as eager
    saves it apart. Without ``inputs`` nothing may be changed, read or not.
    """
    pieces = graph.pieces
    if pieces is None:
        return _unpacked(ctx, graph, tangents, inputs, wanted)
    results, asked = asked_for(tangents, wanted)
    run = pieces.between(results, asked)
    if ctx.kept is not None and not run & ctx.used and not (ctx.kept_own and torch.is_grad_enabled()):
        saved = _kept(ctx, graph, tangents, inputs, wanted)
    elif run:
        saved = _unpacked(ctx, graph, tangents, inputs, wanted)
    else:
        saved = _unread(ctx, graph, tangents, inputs, wanted)
    if not torch_compat.graph_is_retained():
        ctx.used |= run
        _keep(ctx, saved if saved.is_there and pieces.is_left(ctx.used, asked) else None)
    if graph.outlines is None and all(value.layout is torch.strided for value in saved.values):
        graph.outlines = [(value.shape, value.stride(), value.dtype, value.device) for value in saved.values]
    return saved


def _keep(ctx: Any, saved: Saved | None) -> None:
    """Keep what was saved, for a backward through the rest. A node that held its own results would never be freed: it
    has them without their history, so that only a backward that is not differentiated again can follow."""
    if saved is None:
        ctx.kept = None
        return
    node = getattr(ctx, "node", ctx)
    apart = [value.detach() if value.grad_fn is node else value for value in saved.values]
    ctx.kept_own = ctx.kept_own or any(one is not value for one, value in zip(apart, saved.values, strict=True))
    versions = [value._version for value in apart] if saved.versions is None else saved.versions
    ctx.kept = list(zip(apart, versions, strict=True))


def _unread(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: Wanted) -> Saved:
    """What was saved, for a backward that comes to none of eager's nodes that save: any tensors where it was freed."""
    try:
        return _unpacked(ctx, graph, tangents, inputs, wanted)
    except RuntimeError as error:
        if graph.outlines is None or inputs is None:
            raise
        values = [torch.empty_strided(*place, dtype=dtype, device=device) for *place, dtype, device in graph.outlines]
        if _read(graph, tangents, inputs(values), wanted):
            raise
        return Saved(values, error, is_there=False)


def _unpacked(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: Wanted) -> Saved:
    try:
        return Saved(list(ctx.saved_tensors))
    except RuntimeError as error:
        saved = torch_compat.unchecked_saved_tensors(ctx, ctx.saved_versions)
        if saved is None or inputs is None:
            raise
        values = [value for value, _ in saved]
        own = graph.own_versions
        changed = {
            place: not is_unchanged() and (place not in own or value._version != own[place])
            for place, (value, is_unchanged) in enumerate(saved)
        }
        if any(changed[place] for place in _read(graph, tangents, inputs(values), wanted)):
            raise
        return Saved(values, error, [value._version - changed[place] for place, value in enumerate(values)])


def _kept(ctx: Any, graph: Saving, tangents: Gradients, inputs: Inputs | None, wanted: Wanted) -> Saved:
    """What was left by a backward through other results."""
    values = [value for value, _ in ctx.kept]
    versions = [version for _, version in ctx.kept]
    changed = [place for place, (value, version) in enumerate(ctx.kept) if value._version != version]
    if not changed:
        return Saved(values)
    refusal = changed_error(*ctx.kept[changed[0]])
    if inputs is None or not set(changed).isdisjoint(_read(graph, tangents, inputs(values), wanted)):
        raise refusal
    return Saved(values, refusal, versions)


def _read(graph: Saving, tangents: Gradients, inputs: Sequence[torch.Tensor], wanted: Wanted) -> list[int]:
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
