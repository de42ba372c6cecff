"""How a reduction is accumulated: in which C types, from what, and how two parts become one."""

from __future__ import annotations

from bothways.lower.dialects.c.operators import COMPUTED, REDUCTIONS
from bothways.lower.ir.prims import Reduce


def accumulated(reduce: Reduce) -> str:
    """The C type of a whole reduction."""
    kind = partial(reduce)
    return "double" if kind == "float" and reduce.op in ("sum", "prod") else kind


def partial(reduce: Reduce) -> str:
    """The C type a chunk is reduced in."""
    if reduce.op in ("any", "all"):
        return "uint8_t"
    wide = reduce.dtype if reduce.op in ("sum", "prod") else reduce.arg.dtype
    return COMPUTED[wide]


def initial(reduce: Reduce, kind: str) -> str:
    return REDUCTIONS[reduce.op][0].replace("{T}", kind)


def combined(reduce: Reduce, kind: str, one: str, other: str) -> str:
    return REDUCTIONS[reduce.op][1].replace("{T}", kind).format(one, other)
