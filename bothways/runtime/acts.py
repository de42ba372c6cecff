"""How often graphs have done, in this thread, what a second run of them would do once more.

A graph that fails has done nothing of the kind if the number is still the one that it began with: plain Python can run
the call. What changes tensors alone is undone by other means (``kept_inputs.py``).
"""

from __future__ import annotations

import threading


class _Acts(threading.local):
    count = 0


_acts = _Acts()


def act() -> None:
    """Said by whatever a graph calls that has effects, before it has them."""
    _acts.count += 1


def acts() -> int:
    return _acts.count
