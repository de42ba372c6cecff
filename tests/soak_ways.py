"""The ways a generated program is compiled, and what makes thousands of them affordable.

A program costs what its captures cost, as often as it is captured. So in a long run each takes one of the ways, by its
seed; the plain run is one for all ways; most kernels are built without optimization, which is half of what a compiler
takes, or are Python loops, which need none.
"""

import contextlib
import gc
from typing import NamedTuple
from unittest import mock

import bothways
from bothways.backends import native
from bothways.building import toolchain
from bothways.grad.nodes import renewed
from bothways.lower.dialects.reference.dialect import Reference
from bothways.runtime import logs


class Way(NamedTuple):
    """A backend; whether small graphs become kernels, too; what makes the kernels; and whether tensors of any size
    are large, where writes by an index are ATen's."""

    backend: str
    kernels: bool = True
    compiler: str = "-O3"
    large: bool = False

    def __str__(self):
        small, large = ", small graphs as they are" * (not self.kernels), ", all are large" * self.large
        return f"{self.backend} ({self.compiler}{small}{large})"


EAGER, AOT, NATIVE = Way("eager"), Way("aot_eager"), Way("native")
LAZY = Way("native", kernels=False)
QUICK, LOOPS = Way("native", compiler="-O0"), Way("native", compiler="loops in Python")
# All that there are, for a program that goes through each; and the turns that the programs of a long run take.
WAYS = (EAGER, AOT, NATIVE, LAZY)
TURNS = (AOT, QUICK, LOOPS, QUICK, AOT, LOOPS, EAGER, QUICK, AOT, NATIVE, LOOPS, QUICK, AOT, QUICK, LOOPS, LAZY)


def in_turn(seed):
    return TURNS[seed % len(TURNS)]._replace(large=seed // len(TURNS) % 3 == 0)


@contextlib.contextmanager
def taken(way):
    """Inside, ``bothways.compile`` with the way's backend compiles like that; gives the graphs that failed."""
    failures = []

    def failed(failure):
        ran_plainly_after(failure)
        failures.append(f"{type(failure).__name__}: {failure}")

    ran_plainly_after = logs.ran_plainly_after
    with contextlib.ExitStack() as entered:
        entered.enter_context(bothways.config.patch(kernels_for_small_graphs=way.kernels))
        entered.enter_context(mock.patch.object(logs, "ran_plainly_after", failed))
        if way.large:
            entered.enter_context(mock.patch.object(renewed, "LITTLE", 0))
        if way.compiler.startswith("-"):
            flags = [way.compiler if flag == "-O3" else flag for flag in toolchain.FLAGS]
            entered.enter_context(mock.patch.object(toolchain, "FLAGS", flags))
        else:
            entered.enter_context(mock.patch.object(native, "DIALECT", Reference()))
        yield failures


def few_collections():
    """What is there by now stays, and need not be looked through again for each program."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


# Breaks that are mistakes of ours: nothing of the user's is in the way.
MISTAKES = ("unstable_guard", "internal")


def mistake(function, failures, *, catches):
    """Where a compiled function ran plainly though nothing of the user's was in the way; None if nowhere.

    ``catches`` says whether the program handles errors: its graphs may raise then, and it goes on all the same.
    """
    for compilation in bothways.history(function):
        for found in compilation.breaks:
            if found.code in MISTAKES:
                return f"a break that should not be: {found}"
        for reason in compilation.outcome.reasons if compilation.outcome is not None else ():
            if "could not be lowered" in reason:
                return reason
    if failures and not catches:
        return f"a graph raised where plain Python does not, {len(failures)} times: {failures[0]}"
    return None


def check(source, checking, seed, ways):
    """A generated program does in each of the ways what it does plainly, as its kind's own checker tells."""
    plain = checking.plainly(source)
    for way in ways:
        try:
            found = checking.disagreement(source, way, plain)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        assert found is None, f"seed {seed}, {way}\n{source}\n{found}"
