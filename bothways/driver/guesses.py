"""A program that has guessed wrong too often is let go: the next capture ends where it would guess again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.runtime import logs
from bothways.runtime.guesses import Guesses
from bothways.runtime.nodes import is_of_data

if TYPE_CHECKING:
    from bothways.driver.compiled import CompiledFunction


def ran_plainly(owner: CompiledFunction, failure: Exception, guesses: Guesses | None = None) -> None:
    """A graph raised where plain Python then did not; ``guesses`` are those of its program."""
    logs.ran_plainly_after(failure)
    if guesses is None or owner.options.fullgraph or not is_of_data(failure) or not guesses.failed():
        return
    owner.history.disbelieved.update(guesses.places)
    for program in owner.dispatcher.programs:
        if any(value is guesses for value in program.namespace.values()):
            owner.dispatcher.drop(program)
