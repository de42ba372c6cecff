"""Operations that may fail where code of the user's waits for it, in an ``except``, a ``finally`` or an ``__exit__``.

A graph that fails begins anew as plain Python, where the handler is; it cannot where it has by then changed what is not
put back (``repeating.py``). Such an operation ends the graph before it, and runs at the user's line. So does one with
no handler, if the Python before it has changed what a caller sees, and the graph an input that autograd has computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch.fx

from bothways.capture.recording.repeating import changes_computed, leaves_changed
from bothways.capture.shapes.safe_operations import may_fail
from bothways.capture.state.running import OF_OTHERS, Running
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame


def fails_unseen(
    node: torch.fx.Node, nodes: Iterable[torch.fx.Node], inputs: Iterable[TensorValue], running: Running, changed: bool
) -> bool:
    """Whether the error of the last of the nodes would not come to the handler that is around it, or would leave
    without what Python has ``changed`` before."""
    is_left = leaves_changed if any(map(_is_watched, running.frames)) else changes_computed if changed else None
    return is_left is not None and may_fail(node) and is_left(nodes, inputs)


def _is_watched(frame: Frame) -> bool:
    """Whether code of the user's runs before an exception leaves the frame."""
    if frame.code.co_filename.startswith(OF_OTHERS):
        return False
    decoded = frame.decoded
    row = decoded.handler_for(frame.index - 1)
    while row is not None:
        first, *others = (instruction.name for instruction in decoded.instructions[row.target : row.target + 2])
        is_managed = "WITH_EXCEPT_START" in others
        # Else what handles it only cleans up.
        if first == "PUSH_EXC_INFO" and not (is_managed and _is_pytorchs(frame.stack[row.depth - 1])):
            return True
        row = decoded.handler_for(row.target)
    return False


def _is_pytorchs(leave: Value) -> bool:
    """Whether a method that ends a ``with`` block only puts a mode back."""
    owner = getattr(leave.realize(), "owner", None)
    return isinstance(owner, Value) and owner.realize().python_type().__module__.partition(".")[0] == "torch"
