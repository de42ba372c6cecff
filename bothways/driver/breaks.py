"""The breaks of one code: how often each was met, and whether capture should try again after it.

A break comes in with where it happened; what goes out is whether the next call is captured. A break is never counted by
its reason, which may name sizes.
"""

from __future__ import annotations

import types
from collections import Counter

from bothways.errors import ONCE, Break, Position
from bothways.record import logs
from bothways.record.compilation import Compilation, Conclusion, is_news
from bothways.record.counters import counters
from bothways.record.history import History
from bothways.record.standing import begins_at, short

# The same break this often, and a function is not looked at again: capture costs more than it can win.
BREAKS_BEFORE_PLAIN = 3
# Breaks that are around the call, and may not be at the next: a mode is active, a builtin is replaced.
BREAKS_AROUND = frozenset({"torch_mode", "builtin_replaced"})
# Breaks after which a function is not looked at again at once.
BREAKS_FOR_GOOD = frozenset({"too_long", "too_deep"})
# So often it is believed that a break is not there at the next call: models that are trained one after the other by
# the same code each have such a call.
MOST_ONCE = 16
# Breaks that are loops of which each turn is captured by itself, from now on at once.
BREAKS_OF_LOOPS = frozenset({"training_loop"})


class BreakCounts:
    """How often there was a break at each place."""

    def __init__(self) -> None:
        # By place, not by reason: the reason may name sizes, which change from call to call.
        self._counts: Counter[tuple[str, Position]] = Counter()

    def is_last(self, end: Break) -> bool:
        """Count a break; whether nothing more is to be captured after it."""
        self._counts[end.code, end.where] += 1
        return self._counts[end.code, end.where] >= BREAKS_BEFORE_PLAIN or end.code in BREAKS_FOR_GOOD

    @property
    def may_wait(self) -> bool:
        """Whether a call with a break of its own runs plainly as a whole; one after the other may have some."""
        of_once = [count for (code, _), count in self._counts.items() if code in ONCE]
        return all(count + 1 < MOST_ONCE for count in of_once)

    def is_only_now(self, end: Break) -> bool:
        """Whether the break is of this call and not of the next. One that says so often is taken for any other."""
        if end.is_once:
            self._counts[end.code, end.where] += 1
        return end.is_once and self._counts[end.code, end.where] < MOST_ONCE


def note_break(
    end: Break, record: Compilation | None, history: History, function: types.FunctionType, backend_name: str
) -> None:
    """Write down a break, and tell the user of one that is new; without a record, the call was not looked at."""
    is_new = is_news(end, history.breaks)
    if record is None:
        if not is_new:
            return
        record = Compilation(function.__qualname__, backend_name, begins_at(function))
        record.conclude(Conclusion.PLAIN, short(end))
        history.add(record)
    record.breaks.append(end)
    if end.code in BREAKS_OF_LOOPS:
        history.turned.add(end.where)
    if end.code == "value_changes":
        history.disbelieved.add(end.where)
    if is_new:
        counters["graph_break"][end.reason] += 1
        logs.broke(record, end)
