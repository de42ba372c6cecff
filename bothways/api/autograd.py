"""``bothways.autograd``: whole backwards as programs."""

from bothways.api.compile import compile
from bothways.backward.capturing import capture
from bothways.backward.engine import default_compiler
from bothways.record.backwards import BackwardRecord, backwards

__all__ = ["capture", "history"]

default_compiler[:] = [compile]


def history() -> list[BackwardRecord]:
    """What became of the backwards that were to be captured, one record for each line that called one.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> with bothways.autograd.capture(bothways.compile):
    ...     (weight * 2).sum().backward()
    >>> record = bothways.autograd.history()[-1]
    """
    return list(backwards)
