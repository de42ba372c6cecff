"""How a reduction is accumulated in C: in which types, from what, and how two parts become one."""

from __future__ import annotations

from bothways.lower.dialects.c_family.operators import COMPUTED, REDUCTIONS
from bothways.lower.schedule.tree import Accumulator


def accumulated(reduction: Accumulator) -> str:
    """The C type of a whole reduction."""
    kind = partial(reduction)
    return "double" if kind == "float" and reduction.op in ("sum", "prod") else kind


def partial(reduction: Accumulator) -> str:
    """The C type a chunk is reduced in."""
    if reduction.op in ("any", "all"):
        return "uint8_t"
    wide = reduction.dtype if reduction.op in ("sum", "prod") else reduction.of
    return COMPUTED[wide]


def initial(reduction: Accumulator, kind: str) -> str:
    return REDUCTIONS[reduction.op][0].replace("{T}", kind)


def combined(reduction: Accumulator, kind: str, one: str, other: str) -> str:
    return REDUCTIONS[reduction.op][1].replace("{T}", kind).format(one, other)
