"""Which values are computed wherever they are read, rather than once: those with one reader, and cheap ones."""

from __future__ import annotations

from bothways.lower.ir.prims import Buffer, Expand, IndexAlong, Map, Node, Reduce, Scalar, View
from bothways.lower.ir.sizes import size_hint
from bothways.ops import PRIMITIVES

# What one value may compute in place: deep enough to need no variable for most, shallow enough to walk by recursion.
MAX_OPERATIONS, MAX_READS = 64, 24
FEW_ON_PLACES = 24  # operations on indices alone
# So many elements that read one of another value, and what that takes to compute is little beside them.
MANY = 32


def inlined(live: set[Node], stored: set[Node], spreads: bool) -> set[Node]:
    """Maps that are computed where they are read: those with one reader, and those that cost nothing."""
    readers: dict[Node, int] = {}
    expanded: set[Node] = set()

    def note(node: Node, wider: bool) -> None:
        while isinstance(node, View):
            wider = wider or isinstance(node, Expand)
            node = node.arg
        readers[node] = readers.get(node, 0) + 1
        if wider:
            expanded.add(node)

    for node in live:
        if not isinstance(node, (View, Buffer)):
            for source in node.sources():
                note(source, False)
    places = _of_places(live) - stored if spreads else set()
    at_readers: set[Node] = {
        node
        for node in live
        if isinstance(node, Map)
        and node not in stored
        and ((readers.get(node, 0) == 1 and node not in expanded) or _costs_nothing(node) or node in places)
    }
    cheap = {
        node
        for node in live
        if isinstance(node, Map)
        and node not in stored
        and node not in expanded
        and not spreads
        and _is_cheap(node, at_readers)
    }
    if spreads:
        for node in sorted(live, key=lambda node: node.number):  # those it reads come before it
            if not isinstance(node, Map) or node in stored or node in at_readers:
                continue
            is_cheap = _is_cheap_to_spread(node, at_readers | cheap)
            if not is_cheap and node.op == "cast" and node.args[0].dtype.itemsize < node.dtype.itemsize:
                at_readers.discard(without_views(node.args[0]))  # rather the narrower one is in memory
                is_cheap = _is_cheap_to_spread(node, at_readers | cheap)
            if is_cheap:
                cheap.add(node)
    return _bounded(live, at_readers | cheap, places)


def _of_places(live: set[Node]) -> set[Node]:
    """What is computed of indices alone, by a few operations: where a vector is, which is the same for its elements."""
    operations: dict[Node, int] = {}
    for node in sorted(live, key=lambda node: node.number):
        if isinstance(node, (Map, View)):
            count = sum(operations.get(source, FEW_ON_PLACES) for source in node.sources()) + isinstance(node, Map)
            if count < FEW_ON_PLACES:
                operations[node] = count
        elif isinstance(node, (Scalar, IndexAlong)):
            operations[node] = 0
    return {node for node in operations if isinstance(node, Map)}


def _bounded(live: set[Node], inlined: set[Node], places: set[Node]) -> set[Node]:
    """Without what would make a value too large to be computed in one place: it is a value of its own, then."""
    kept = set(inlined)
    weights: dict[Node, tuple[int, int]] = {}  # operations and reads, in place

    def weight(node: Node) -> tuple[int, int]:
        if isinstance(node, Buffer):
            return 0, 1
        if isinstance(node, Map) and node not in kept:
            return 0, 1
        return weights.get(node, (0, 0))

    for node in sorted(live, key=lambda node: node.number):
        parts = [weight(source) for source in node.sources()]
        operations, reads = sum(part[0] for part in parts), sum(part[1] for part in parts)
        if isinstance(node, (Map, Reduce)):
            heaviest = sorted(zip(parts, node.sources(), strict=True), key=lambda part: part[0])
            while (operations >= MAX_OPERATIONS or reads > MAX_READS) and heaviest:
                (less, fewer), source = heaviest.pop()
                computed = without_views(source)
                if computed in kept:
                    kept.discard(computed)
                    operations, reads = operations - less, reads - fewer + 1
            operations += 1
        weights[node] = (0, 0) if node in places else (operations, reads)
    return kept


def without_views(node: Node) -> Node:
    """What a chain of views shows."""
    while isinstance(node, View):
        node = node.arg
    return node


def _is_cheap(node: Map, inlined: set[Node]) -> bool:
    """Whether computing the value again costs less than writing it and reading it: a few operations on one tensor."""
    operations, large, pending = 0, 0, [node]
    while pending:
        step = pending.pop()
        operations += 1
        if PRIMITIVES[step.op].is_expensive or operations > 4:
            return False
        for arg in step.args:
            if isinstance(arg, Buffer):
                large += arg.numel == node.numel and 0 not in arg.strides
            elif isinstance(arg, Map) and arg in inlined:
                pending.append(arg)
            elif not isinstance(arg, (Scalar, IndexAlong)) and not _is_one_for_many(arg, node):
                return False
    return large <= 1


def _is_one_for_many(arg: Node, node: Map) -> bool:
    """Whether a node reads each element of what is computed many times over: the mean of a row, in a whole tensor."""
    computed = without_views(arg)
    return isinstance(computed, (Map, Reduce)) and size_hint(computed.numel) < size_hint(node.numel)


def _is_cheap_to_spread(node: Map, inlined: set[Node]) -> bool:
    """The same where arithmetic costs next to nothing: reading one tensor again, and what is small beside it."""
    operations, large, pending = 0, set[Node](), [node]
    while pending:
        step = pending.pop()
        operations += step.op != "cast"
        if PRIMITIVES[step.op].is_expensive or operations > 8:
            return False
        for arg in map(without_views, step.args):
            if isinstance(arg, Map) and size_hint(arg.numel) * MANY <= size_hint(node.numel):
                continue  # one for many, whatever it takes
            if isinstance(arg, Map) and arg in inlined:
                pending.append(arg)
            elif isinstance(arg, (Map, Buffer)):
                if arg.numel != 1 and arg.numel == node.numel and 0 not in (getattr(arg, "strides", None) or ()):
                    large.add(arg)
            elif not isinstance(arg, (Scalar, IndexAlong, Reduce)):
                return False
    return len(large) <= 1


def _costs_nothing(node: Map) -> bool:
    return all(
        isinstance(arg, (Scalar, IndexAlong)) or (isinstance(arg, View) and isinstance(arg.arg, (Scalar, IndexAlong)))
        for arg in node.args
    )
