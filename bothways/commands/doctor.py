"""``python -m bothways doctor``: prints what there is on this machine; the exit status says whether it is fine."""

from __future__ import annotations

import sys

from bothways.api.doctor import doctor


def examine(arguments: list[str]) -> int:
    """``doctor``, without arguments."""
    if arguments:
        print("usage: python -m bothways doctor", file=sys.stderr)
        return 2
    diagnosis = doctor()
    print(diagnosis)
    return 0 if diagnosis.is_fine else 1
