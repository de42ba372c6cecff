"""``python -m bothways report script.py -o report.html``: runs a program, and writes what became of it."""

from __future__ import annotations

import argparse
import contextlib
import sys

from bothways.api.dropin import install
from bothways.api.profile import profile
from bothways.commands.running import file_for, hide_own_frames, is_missing, program_of
from bothways.driver.everyone import keeping_everyone
from bothways.report.explaining import explained_states
from bothways.report.html import explanation_page, write_page
from bothways.report.profile import Profile

USAGE = "[-o report.html] [--time] script.py | -m module | -c command [arguments]"


def write_report(arguments: list[str]) -> int:
    """Run the program with the drop-in, and write the report when it ends, in whatever way it does."""
    parser = argparse.ArgumentParser("python -m bothways report", usage=f"python -m bothways report {USAGE}")
    parser.add_argument("-o", "--output", default="report.html", help="where to write it (default: report.html)")
    parser.add_argument("--time", action="store_true", help="measure kernels and ATen calls, which is slower")
    own, rest = _split(arguments)
    options = parser.parse_args(own)
    # After it the program's own ``-o`` is not ours.
    program = program_of(rest) if rest else "a program is expected"
    target = file_for(options.output)
    if isinstance(program, str) or isinstance(target, str):
        problem = program if isinstance(program, str) else target
        print(f"{problem}\nusage: python -m bothways report {USAGE}", file=sys.stderr)
        return 2
    if is_missing(rest):  # nothing to report on: say it as Python does
        program()
    install()
    hide_own_frames()
    with keeping_everyone() as states, contextlib.ExitStack() as stack:
        measured: Profile | None = stack.enter_context(profile()) if options.time else None
        try:
            program()
        finally:
            stack.close()
            page = explanation_page(explained_states(states), measured, title=" ".join(rest))
            write_page(target, page)
            print(f"bothways: wrote the report to {options.output}", file=sys.stderr)
    return 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the program with its arguments."""
    place = 0
    while place < len(arguments):
        option = arguments[place]
        if option in ("-o", "--output"):
            place += 2
        elif option.startswith(("--output=", "--time", "-h", "--help")):
            place += 1
        else:
            break
    return arguments[:place], arguments[place:]
