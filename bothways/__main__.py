"""``python -m bothways script.py args...``: runs a program with the drop-in installed, or one of the commands.

The program is given on the command line as it would be to ``python`` itself (a script, ``-m module`` or
``-c command``); the commands are those of ``commands/table.py``.
"""

from __future__ import annotations

import sys

import bothways
from bothways.api.dropin import install
from bothways.commands.running import hide_own_frames, program_of
from bothways.commands.table import COMMANDS, usage


def main(arguments: list[str]) -> int:
    """Run the program or command that ``arguments`` name; returns the exit status when there was none to run."""
    first, *rest = arguments or ["--help"]
    if first in ("-h", "--help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if first in ("-V", "--version"):
        print(f"bothways {bothways.__version__}")
        return 0
    if first in COMMANDS:
        return COMMANDS[first].run(rest)
    program = program_of(arguments)
    if isinstance(program, str):
        print(f"{program}\n{usage()}", file=sys.stderr)
        return 2
    install()
    hide_own_frames()
    program()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
