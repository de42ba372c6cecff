"""When capturing a function is given up, because captures that came to nothing have taken too long.

Hits are never timed. What counts are calls that were captured and then ran as plain Python all the same.
"""

from __future__ import annotations

import time
import warnings

from bothways.config import config
from bothways.errors import Break, RecompileLimitWarning, level_of_user

clock = time.perf_counter

# So many captures in vain are free: the first calls of a function may be others than those to come.
FREE = 3
# So many calls, at most, run plainly before another capture is tried where the world around the calls is in the way.
LONGEST_PAUSE = 256


class Budget:
    """What captures that came to nothing have taken, and the calls themselves."""

    def __init__(self) -> None:
        self.captures = self.pause = 0
        self.capturing = self.running = 0.0
        self._in_the_way = 0

    def spend(self, capturing: float, running: float) -> None:
        """Note a capture that came to nothing, and how long the call then took."""
        self.captures += 1
        self.capturing += capturing
        self.running += running

    @property
    def is_exhausted(self) -> bool:
        allowed = config.wasted_capture_ratio
        return allowed > 0 and self.captures > FREE and self.capturing > allowed * self.running

    def wait(self) -> None:
        """The world around the call is in the way, and may be gone later: look again, but ever more seldom."""
        self._in_the_way += 1
        self.pause = min(2 ** (self._in_the_way - FREE), LONGEST_PAUSE) if self._in_the_way > FREE else 0

    def text(self, last: Break) -> str:
        times = f"{self.capturing / self.running:.0f} times" if self.running else "more than"
        return (
            f"{self.captures} captures came to nothing and took {self.capturing:.2g} s, {times} what the calls take "
            f"(config.wasted_capture_ratio allows {config.wasted_capture_ratio} times). The last one ended with {last}"
        )


def say(message: str) -> None:
    """Tell the caller, at their line, that a function is not captured any more."""
    warnings.warn(message, RecompileLimitWarning, stacklevel=level_of_user())
