"""From what a graph calls to the record of that operation: the rows of all tables, and what follows without a row.

Names tell of methods and functions, schemas and tags of overloads. Records are made when they are first asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.ops import (
    bindings,
    collectives,
    layers,
    lists,
    making,
    operators,
    pointwise,
    products,
    random,
    reductions,
    views,
)
from bothways.ops.operation import Gives, Operation

# Which have no tag that says that they are pointwise.
POINTWISE = ("copy", "divide", "masked_fill", "multiply", "subtract")
TABLES = (
    pointwise, reductions, views, making, products, layers, random, operators, lists, collectives, bindings,
)  # fmt: skip


def _assembled() -> dict[str, dict[str, Any]]:
    """Facts by name. A fact of an operation is said once."""
    rows: dict[str, dict[str, Any]] = {}
    for table in TABLES:
        for row in table.ROWS:
            for name in row.names:
                known = rows.setdefault(name, {})
                if known.keys() & row.facts.keys():
                    raise ValueError(f"{name} has two rows in the tables of operations")
                known.update(row.facts)
    return rows


FACTS = _assembled()

# Names that sound like random numbers, of functions that no row names: new ones, and those made of others.
DRAWING = re.compile(
    r"rand|dropout|bernoulli|normal(?!iz)|multinomial|poisson|uniform|exponential|geometric|cauchy|rrelu|gumbel"
    r"|attention|lstm|gru|rnn"
)
NORMALISATIONS = ("batch_norm", "instance_norm")
CALLS = frozenset({"call_function", "call_method", "call_module"})
OVERLOAD = torch_compat.OP_TYPES[0]
NOTHING = Operation("")
OF_OTHERS = {False: NOTHING, True: Operation("", draws=True)}


def of_node(node: torch.fx.Node) -> Operation:
    """What a node of a captured graph does; one that calls nothing does nothing."""
    target = node.target
    if node.op not in CALLS:
        return NOTHING
    if type(target) is str:
        return named(target)
    return _of_overload(target) if type(target) is OVERLOAD else named(getattr(target, "__name__", ""))


def of(target: Any) -> Operation:
    """What a node of a traced graph calls. Only PyTorch's tags say that it draws: names are the user's own."""
    if type(target) is OVERLOAD:
        return _of_overload(target)
    return OF_OTHERS[torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())]


@functools.lru_cache(maxsize=4096)
def named(name: str) -> Operation:
    """The record of a function, method or operator, as far as its name tells."""
    return Operation(name, **_facts(name))


def having(fact: str) -> Iterator[Operation]:
    """The operations whose row says something about ``fact``."""
    return (named(name) for name, facts in FACTS.items() if fact in facts)


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"keeps_statistics": name.endswith(NORMALISATIONS)}
    if name.endswith("_") and not name.endswith("__"):
        functional = named(name[:-1])
        facts |= {
            "writes": True,
            "functional": functional.name,
            "draws": functional.draws,
            "writes_by_index": functional.writes_by_index,
        }
    elif name not in FACTS:
        facts["draws"] = DRAWING.search(name) is not None
    return facts | FACTS.get(name, {})


@functools.cache
def goes_by_places(name: str) -> bool:
    """Whether an operation computes each element of what it writes to from elements at the same place alone."""
    family = named(name).functional or name
    overloads = getattr(torch.ops.aten, family, None)
    tags = [getattr(overloads, one).tags for one in overloads.overloads()] if overloads is not None else []
    return family in POINTWISE or any(torch.Tag.pointwise in some for some in tags)


@functools.cache
def _of_overload(target: Any) -> Operation:
    schema, tags = torch_compat.schema_of(target), target.tags
    is_aten = schema.name.startswith("aten::")
    family = schema.name.removeprefix("aten::")
    full = f"{family}.{schema.overload_name or 'default'}"
    facts = _facts(family) | FACTS.get(full, {})
    aliases = any(result.alias_info is not None for result in schema.returns)
    if aliases and not schema.is_mutable:
        facts.setdefault("gives", Gives.VIEW)
    facts |= {
        "aliases": aliases,
        "writes": schema.is_mutable,
        # Whoever adds operations may forget the tags.
        "draws": torch.Tag.nondeterministic_seeded in tags or bool(not is_aten and DRAWING.search(family)),
        "pointwise": is_aten and torch.Tag.pointwise in tags,
    }
    return Operation(full, target, **facts)
