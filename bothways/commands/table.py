"""The commands of ``python -m bothways``: their names, what they do, and how they are used.

A command is a function from its arguments to the exit status. Adding one is adding a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bothways.commands.cache import look_after_cache
from bothways.commands.doctor import examine
from bothways.commands.report import write_report
from bothways.commands.repro import reproduce


@dataclass(frozen=True)
class Command:
    """One command: ``usage`` is what stands after its name, ``about`` one sentence."""

    run: Callable[[list[str]], int]
    usage: str
    about: str


COMMANDS: dict[str, Command] = {
    "cache": Command(look_after_cache, "info | clear", "shows or empties the cache of compiled kernels"),
    "report": Command(write_report, "[-o FILE] [--time] script.py", "runs a program, and reports what was compiled"),
    "doctor": Command(examine, "", "checks this machine, and says how to fix what is wrong"),
    "repro": Command(
        reproduce, "[-o FILE] script.py …", "runs a program, and makes a script of the first graph that goes wrong"
    ),
}


def usage() -> str:
    """How the command line is used, on a screen."""
    lines = [f"{name} {command.usage}" for name, command in COMMANDS.items()]
    width = max(map(len, lines))
    return "\n".join([
        "usage: python -m bothways script.py [arguments]",
        "       python -m bothways -m module [arguments]",
        "       python -m bothways -c command [arguments]",
        "",
        "Runs a program written for torch.compile on bothways, unchanged. Or one of these commands:",
        "",
        *(
            f"    python -m bothways {line:<{width}}  {command.about}"
            for line, command in zip(lines, COMMANDS.values(), strict=True)
        ),
    ])
