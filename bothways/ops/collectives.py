"""What processes tell each other, as it stands in traced graphs (``runtime/collectives.py``).

Tags say that these operations draw random numbers: they are treated so.
"""

from __future__ import annotations

from bothways.ops.operation import Gives, row

ROWS = (
    row("bothways::all_reduce bothways::broadcast", gives=Gives.FRESH, copies_first=True),
    row("bothways::all_gather bothways::all_gather_list", gives=Gives.FRESH),
    row("bothways::reduce_scatter bothways::all_to_all", gives=Gives.FRESH),
)
