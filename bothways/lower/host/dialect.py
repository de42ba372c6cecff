"""What programs ask of a dialect, the language that kernels are spelled in. Who compiles a graph chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from bothways.cache.disk import Cache
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Kernel

Functions = dict[str, Callable[..., Any]]
# A routine, and a function that gives the nanoseconds each of its kernels took in the last call.
Timed = tuple[Callable[..., Any], Callable[[], list[int]]]


class Spelled(Protocol):
    """The routines of a program in one language.

    ``sizes`` has, for each routine, the names of the numbers it takes after its memories and its work area. It may have
    ``called``: the names of the kernels that each routine runs, in order, which is for people.
    """

    @property
    def text(self) -> str: ...

    @property
    def sizes(self) -> dict[str, tuple[str, ...]]: ...

    @property
    def uses_threads(self) -> bool:
        """Whether routines run in PyTorch's threads."""
        ...

    def functions(self, kinds: Mapping[str, str]) -> Functions:
        """The routines as functions that Python calls; ``kinds`` has a letter for each of their arguments."""
        ...

    def key(self, cache: Cache) -> str:
        """What the functions are found again by in the cache; nothing where there are none."""
        ...


class Dialect(Protocol):
    """A language for kernels. ``name`` is for people, ``suffix`` of its files, ``device`` whose memory it reads.

    It may have ``timed``, which profiles ask for: the routines of a text once more, by name, each with a function that
    tells how long its kernels took in the last call (``Timed``). Where it has ``multiplies``, and that is true, kernels
    may be products of matrices, and with ``adds_at_places`` sums at places that are computed; work areas of up to
    ``frame`` bytes are in the frames of its routines. It may have ``making``: a function of rows of text that gives one
    which makes all those tensors (``calls/tensors_made.py``).
    """

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    @property
    def device(self) -> str: ...

    def tools(self, cache: Cache) -> str | None:
        """All that decides what becomes of a text; None when programs are not to be kept."""
        ...

    def arranged(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """The kernels that do what some do that follow each other, where one is several here, or several are one."""
        ...

    def spell(self, routines: Sequence[Routine], names: SizeNames | None) -> Spelled:
        """Write routines; ``names`` are those of sizes that are known only when they run."""
        ...

    def recall(self, key: str, kinds: Mapping[str, str], cache: Cache) -> Functions | None:
        """The functions that a program had when it was kept; None when they are there no more."""
        ...

    def whole(self, text: str) -> str:
        """A text with all it needs above it, for people to read and compile."""
        ...
