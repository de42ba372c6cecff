"""The names of a graph's values in the code that is generated for it.

Values are called as the nodes of the graph are, which may be anything: an operation is called ``empty``, a user's own
may be called ``run``. What generated code means by a name of its own, no value may take.
"""

from __future__ import annotations

import builtins
import keyword
import re

from bothways.source_text import identifier

# What the Python around kernels is given and uses itself, its builtins included.
OF_PYTHON = frozenset(
    {*dir(builtins), *keyword.kwlist, *keyword.softkwlist}
    | set("run inputs area empty empty_like empty_strided get_num_threads settle surprises as_laid_out".split())
)
# Families of names: constants, routines, what makes tensors, kernels, symbols and what is computed from them.
FAMILIES = re.compile(r"at_|run_\d|new_\d|kernel_\d|([a-z]|fu)\d+$|_*$|__")


class GraphNames:
    """Hands out names for the values of one graph."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def claim(self, name: str) -> str:
        """Take a name that is given: a symbol's, whose family no value belongs to."""
        self._taken.add(name)
        return name

    def fresh(self, hint: str) -> str:
        """A name that nothing else in generated code has."""
        base = hint if hint.isascii() and hint.isidentifier() else identifier(hint)
        if base in OF_PYTHON or FAMILIES.match(base):
            base = f"value_{base}".rstrip("_")
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        return self.claim(name)
