"""The value stack of a frame that goes on as real Python: what stands at each place, and the text that gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.interpreter import NULL, Handled
from bothways.capture.values.core.base import Value
from bothways.runtime.resume import Entry

if TYPE_CHECKING:
    from bothways.capture.writing.emit import Emitter


def stack_values(stack: list[Any]) -> Iterator[Value]:
    """What has to be built for a stack."""
    for entry in stack:
        entry = entry.raised if isinstance(entry, Handled) else entry
        if isinstance(entry, Value):
            yield entry


def stack_texts(emitter: Emitter, stack: list[Any]) -> tuple[list[Entry], list[str | int]]:
    """What the stack consists of, and the texts of its values; numbers are places of instructions."""
    entries: list[Entry] = []
    texts: list[str | int] = []
    for entry in stack:
        if entry is NULL:
            entries.append(Entry.NULL)
        elif isinstance(entry, Handled):
            entries.append(Entry.HANDLED)
            texts.append(emitter.rebuild(entry.raised))
        else:
            entries.append(Entry.VALUE)
            if isinstance(entry, (int, str)):
                texts.append(entry)
            else:
                texts.append(emitter.rebuild(entry))
    return entries, texts
