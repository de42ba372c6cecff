"""What is known of each operation: one record, from which every other folder asks.

The tables are grouped by kind, a row for operations of which the same is known. This folder lies below all others, so
that capture, fake tensors, differentiation and lowering read the same facts; functions that belong to an operation but
need what those folders know, shape rules and lowerings, are written there and registered here (``rules``).
"""

from bothways.ops.operation import Binding, Fails, Gives, Home, LooksLike, Operation
from bothways.ops.primitives import PRIMITIVES, REDUCTIONS, Primitive
from bothways.ops.rules import LOWERINGS, REFUSALS, SHAPE_RULES, WARNINGS
from bothways.ops.table import FACTS, goes_by_places, having, named, of, of_node

__all__ = [
    "FACTS",
    "LOWERINGS",
    "PRIMITIVES",
    "REDUCTIONS",
    "REFUSALS",
    "SHAPE_RULES",
    "WARNINGS",
    "Binding",
    "Fails",
    "Gives",
    "Home",
    "LooksLike",
    "Operation",
    "Primitive",
    "goes_by_places",
    "having",
    "named",
    "of",
    "of_node",
]  # fmt: skip
