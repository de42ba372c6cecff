"""What PyTorch says about an operation that could not be worked out, in one line that a person can use.

Its messages are for those who write kernels: of some a whole page has to do with something else.
"""

from __future__ import annotations

import re

from bothways.source_text import printable

# Words of PyTorch's -> what they mean for the user whose function is captured.
MEANINGS: tuple[tuple[str, str], ...] = (
    (r"data is not allocated yet", "its kernel reads data, which capture does not have"),
    (r"Could not run '.*' with arguments from the '.*' backend", "it has no kernel for tensors without data"),
    (r"^Cannot access data pointer|data pointer of Tensor that doesn't have storage", "its kernel reads data"),
    (r"DynamicOutputShapeException", "how large its result is depends on data"),
    (r"DataDependentOutputException", "what it gives depends on data"),
    (r"UnsupportedOperatorException|for 'Meta'|[Mm]eta tensor", "it has no kernel for tensors without data"),
)
# Kinds of errors that are our own, whose message says it all.
OWN = ("NeedsData", "SizedByData", "NotImplementedError", "WritesShared")
MOST_LETTERS = 300


def said(error: BaseException) -> str:
    """The error in one line."""
    kind, message = type(error).__name__, str(error)
    for words, meaning in MEANINGS:
        if re.search(words, f"{kind}: {message}") or re.search(words, message):
            return meaning
    first = printable(message.strip().partition("\n")[0]).strip()
    first = first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]}…"
    return first if kind in OWN and first else f"{kind}: {first}" if first else kind


# Functions that people know by something else than their name.
KNOWN_AS = {"getitem": "indexing", "setitem": "writing by an index"}


def known_as(name: str) -> str:
    return KNOWN_AS.get(name, name)
