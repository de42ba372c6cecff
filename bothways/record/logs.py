"""What is printed of compilations as they happen, by topic (``config.logs`` or ``BOTHWAYS_LOGS``)."""

from __future__ import annotations

from bothways.config import config
from bothways.errors import Break
from bothways.record.compilation import Compilation
from bothways.record.outcomes import Piece
from bothways.runtime.logs import say


def recompiling(compilation: Compilation) -> None:
    say("recompiles", f"{compilation.name} is compiled again because {compilation.why}")


def broke(compilation: Compilation, reason: Break) -> None:
    say("breaks", f"{compilation.name}\n{reason}")


def outcome(compilation: Compilation, piece: Piece) -> None:
    say("outcomes", f"{compilation.function}: {piece}")


def compiled(compilation: Compilation) -> None:
    """A program was made, with all that belongs to it."""
    program = compilation.made
    if program is None:
        return
    if config.wants_log("guards"):
        say("guards", "\n".join([compilation.name, *(f"  {check.text}" for check in program.checks)]))
    if config.wants_log("programs"):
        say("programs", f"{compilation.name}\n{program.source}")
    if config.wants_log("graphs"):
        for graph in compilation.graphs_of("captured"):
            say("graphs", f"{compilation.name}\n{graph}")
