"""What a program took as likely of numbers that are found only when it runs, as a size that is drawn, and how often
that was wrong."""

from __future__ import annotations

from collections.abc import Collection

from bothways.errors import Position

# What is wrong at times is not taken back: this many calls at least, and this part of all.
FEW, PART = 4, 0.2


class Guesses:
    """Where a program guesses; it counts its calls, and those that then ran as plain Python."""

    def __init__(self, places: Collection[Position]) -> None:
        self.places = places
        self.calls = self.wrong = 0

    def failed(self) -> bool:
        """Note that a call was not as guessed; whether that is so too often for the program to be of use."""
        self.wrong += 1
        return self.wrong >= FEW and self.wrong > self.calls * PART
