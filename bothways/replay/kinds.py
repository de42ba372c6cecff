"""Calls of one kind, and what is known of them: where their inputs were, which recordings there are."""

from __future__ import annotations

from dataclasses import dataclass, field

from bothways.replay.recording import Recording


@dataclass
class Kind:
    """Calls with the same numbers, on one stream, under the same settings."""

    calls: int = 0
    made: int = 0
    last: list[int] = field(default_factory=list)  # addresses in the last call that was not replayed
    moves: list[int] = field(default_factory=list)  # how often each input has been at another one
    floats: tuple[float, ...] = ()  # numbers with fractions of the last such call
    repeated: int = 0  # in how many such calls one after the other
    moving: set[int] = field(default_factory=set)  # those that were just now
    recordings: list[Recording] = field(default_factory=list)
    plain: str = ""  # why no more is recorded
    latest: Recording | None = None  # which has served a call

    def observe(self, addresses: list[int], floats: tuple[float, ...]) -> None:
        """Note where the inputs of a call are."""
        self.calls += 1
        self.repeated = self.repeated + 1 if floats == self.floats else 1
        self.floats = floats
        before = self.last or addresses
        self.moving = {place for place, address in enumerate(addresses) if address != before[place]}
        self.moves = self.moves or [0] * len(addresses)
        for place in self.moving:
            self.moves[place] += 1
        self.last = addresses
