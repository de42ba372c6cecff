"""Lines whose guards fail at call after call, as ``torch.cat([s for s in batch if s is not None])``.

A function that has as many programs as it may have because of one line leaves what that line calls to plain Python: a
break, and no program for each call. Lines in loops stay, where a break at each turn would cost more than it wins.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Sequence

from bothways.capture.bytecode.lines import line_left
from bothways.errors import Position

MOST_LINES = 4  # of one function
ROOM = 4  # programs that there may be more for each of them: those of before stay


class LinesLeft:
    """The lines that one pool's functions have left; ``known`` is for all parts of the function."""

    def __init__(self, known: set[Position]) -> None:
        self._known = known
        self._own = 0
        # The instructions that led to the guards which did not hold, one of each program, the latest first.
        self.failing: Sequence[int] = ()

    @property
    def room(self) -> int:
        return ROOM * self._own

    def leave_one(self, code: types.CodeType) -> bool:
        """Leave the line at which most programs failed; whether there is one."""
        latest = self.failing[:ROOM] if self._own else self.failing
        lines = Counter(line_left(code, instruction) for instruction in latest)
        if not lines or self._own == MOST_LINES:
            return False
        line, count = lines.most_common(1)[0]
        where = None if line is None else Position(code.co_filename, line, code.co_qualname)
        if where is None or count * 2 <= len(latest) or where in self._known:
            return False
        self._known.add(where)
        self._own += 1
        return True
