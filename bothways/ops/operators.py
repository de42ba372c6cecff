"""Python's operators, by their names in the module ``operator`` or by their methods; others are named as operations."""

from __future__ import annotations

from bothways.ops.operation import FactRow, Fails, Says, row

# Those that write to what is on their left, with what they do.
IN_PLACE = {
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "itruediv": "truediv",
    "idiv": "div",
    "ifloordiv": "floordiv",
    "imod": "mod",
    "ipow": "pow",
    "imatmul": "matmul",
    "ilshift": "lshift",
    "irshift": "rshift",
    "iand": "and_",
    "ior": "or_",
    "ixor": "xor",
}


def _in_place(name: str, functional: str) -> tuple[FactRow, ...]:
    return (
        row(name, writes=True, writes_left=True, functional=functional),
        row(f"__{name}__", writes=True, functional=functional),
    )


ROWS = (
    row("and_ or_", fails=Fails.IF_ANY_FLOAT, writes=False, functional=""),
    row("xor invert", fails=Fails.IF_ANY_FLOAT),
    row("and_ or_", says=Says.THE_SAME),
    row("invert", says=Says.THE_OPPOSITE),
    row("setitem", writes=True, writes_left=True, may_write_shared=True),
    row("ifloordiv imod __ifloordiv__ __imod__", promotes=True),
    *(one for name, functional in IN_PLACE.items() for one in _in_place(name, functional)),
    # Overloads in place that are named otherwise than what they do.
    row("pow_.Scalar", functional="pow.Tensor_Scalar"),
    row("pow_.Tensor", functional="pow.Tensor_Tensor"),
)
