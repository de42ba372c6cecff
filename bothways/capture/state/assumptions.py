"""What has to be so at the next call for the program to be right: guards, and what becomes one at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bothways.capture.guards.guards import Guard, GuardSet
from bothways.capture.guards.sources import Source


class Assumptions:
    """The assumptions of one capture."""

    def __init__(self) -> None:
        self.guards = GuardSet()
        # Variables whose content may never be asked for; that they have one must be so at the next call, too.
        self.looked_up: list[Source] = []
        # Questions about tensors and modes whose answer may be another one when the same code runs later.
        self.asked: set[str] = set()
        self._expected: dict[Source, Guard] = {}
        # What can be judged only when everything was looked at; runs before the guards are complete.
        self._final_checks: list[Callable[[], None]] = []

    def add(self, guard: Guard) -> None:
        self.guards.add(guard)

    def take_over(self, guards: Iterable[Guard]) -> None:
        """Assume what code assumed that was looked at apart."""
        for guard in guards:
            self.guards.add(guard)

    def look_up(self, source: Source) -> None:
        """A variable is there."""
        self.looked_up.append(source)

    def ask(self, question: str) -> None:
        """A question is asked whose answer may be another one later."""
        self.asked.add(question)

    def check_at_end(self, check: Callable[[], None]) -> None:
        """Something is to be judged when everything was looked at."""
        self._final_checks.append(check)

    def expect(self, source: Source, guard: Guard) -> None:
        """Something is there that may not be next time; the guard says so where no other guard reads it."""
        self._expected.setdefault(source, guard)

    def expected_sources(self) -> list[Source]:
        return list(self._expected)

    def complete(self) -> None:
        """Judge what waits for it, and guard the presence of members that no other guard reads."""
        for check in self._final_checks:
            check()
        read: set[Source] = set()
        for guard in self.guards:
            for source in guard.sources:
                step: Source | None = source
                while step is not None and step not in read:
                    read.add(step)
                    step = step.base
        for source, guard in self._expected.items():
            if source not in read:
                self.guards.add(guard)

    def release(self) -> None:
        """Let go of checks, which hold the user's objects."""
        self._final_checks = []

    def leave(self) -> None:
        """Let go of the guards: the program has them."""
        self.guards = GuardSet()
