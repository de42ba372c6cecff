"""Python's operators, by their names in the module ``operator``; the others are called as the operations they are."""

from __future__ import annotations

from bothways.ops.operation import Fails, row

ROWS = (
    row("and_ or_", fails=Fails.IF_ANY_FLOAT, writes=False, functional=""),
    row("xor invert", fails=Fails.IF_ANY_FLOAT),
    # Those that write to what is on their left.
    row("setitem", writes=True, writes_left=True, may_write_shared=True),
    row("iadd", writes=True, writes_left=True, functional="add"),
    row("isub", writes=True, writes_left=True, functional="sub"),
    row("imul", writes=True, writes_left=True, functional="mul"),
    row("itruediv", writes=True, writes_left=True, functional="truediv"),
    row("ifloordiv", writes=True, writes_left=True, functional="floordiv"),
    row("imod", writes=True, writes_left=True, functional="mod"),
    row("ipow", writes=True, writes_left=True, functional="pow"),
    row("imatmul", writes=True, writes_left=True, functional="matmul"),
    row("ilshift", writes=True, writes_left=True, functional="lshift"),
    row("irshift", writes=True, writes_left=True, functional="rshift"),
    row("iand", writes=True, writes_left=True, functional="and_"),
    row("ior", writes=True, writes_left=True, functional="or_"),
    row("ixor", writes=True, writes_left=True, functional="xor"),
    # Overloads in place that are named otherwise than what they do.
    row("pow_.Scalar", functional="pow.Tensor_Scalar"),
    row("pow_.Tensor", functional="pow.Tensor_Tensor"),
)
