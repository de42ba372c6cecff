"""A program as text, the function that it becomes, and its place in the cache on disk."""

from __future__ import annotations

import itertools
import json
import linecache
import re
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from bothways.cache.disk import Cache
from bothways.lower.host.dialect import Dialect, Functions
from bothways.lower.host.listing import listing
from bothways.lower.host.watching import WatchedProgram, watch
from bothways.lower.host.wrapper import as_laid_out
from bothways.record.dump import dump
from bothways.record.generated import keep, note
from bothways.record.outcomes import Generated, KernelFacts, Piece, Way
from bothways.runtime.compiled_graph import described

PYTHON, KERNELS, FACTS = "program.py", "kernels", "facts.json"
_numbers = itertools.count(1)
_ATEN_CALL = re.compile(r"\b(at_\w+)\(")


@dataclass(frozen=True)
class Text:
    """The Python and the kernels of one graph. ``name`` is for people.

    ``functions`` are the routines that Python calls, with a letter for each of their arguments; ``new`` the functions
    that make tensors, with a row for each (``calls/tensors_made.py``). The four before it are for people: how many
    operations the graph has, how many of them ATen runs, in how many kernels the others, and of each kernel its name,
    its routine, the bytes it reads and writes, and the operations it computes.
    """

    name: str
    python: str
    kernel_text: str
    functions: dict[str, str]
    takes_list: bool
    looks_at_grad_mode: bool
    operations: int = 0
    calls: int = 0
    kernels: int = 0
    about: list[Any] = field(default_factory=list)
    new: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kernel_facts(self) -> tuple[KernelFacts, ...]:
        rows = self.about
        return tuple(KernelFacts(name, routine, tuple(members), *sizes) for name, routine, *sizes, members in rows)

    def _watched(self, label: str, dialect: Dialect) -> WatchedProgram:
        """The program as profiles know it."""
        return WatchedProgram(
            "", self.name, label, self.python, tuple(self.functions), _calls_of(self.python), self.kernel_facts,
            self.kernel_text, dialect, self.functions,
        )  # fmt: skip

    def tell(self) -> None:
        """Say how the graph runs."""
        if self.kernels:
            inside = max(self.operations - self.calls, 0)
            note(Piece(self.name, Way.KERNELS, self.operations, inside, self.kernels))
        else:
            note(Piece(self.name, Way.ATEN, self.operations, reason="nothing in it is for kernels"))

    def show(self, namespace: dict[str, Any], dialect: Dialect, from_cache: bool = False) -> None:
        """Let people read it who asked for it."""
        kernels = {dialect.name: self.kernel_text} if self.kernel_text else {}
        keep(Generated(self.name, {**kernels, "Python": self.python}, self.kernel_facts, from_cache))
        dump(self.name, lambda stem: listing(stem, self.kernel_text, self.python, namespace, dialect))

    def function(
        self,
        namespace: dict[str, Any],
        functions: Functions,
        dialect: Dialect,
        first: str = "",
        settled: Callable[[], None] = lambda: None,
    ) -> Callable[..., Any]:
        """The function to call; ``functions`` are the routines by name.

        ``first`` is the text of its first call, which looks whether ATen lays out its results as expected;
        ``settled`` is called when it does.
        """
        namespace |= functions
        if self.new:
            namespace |= {name: dialect.making(rows) for name, rows in self.new.items()}  # type: ignore[attr-defined]
        label = f"<bothways native {self.name} {next(_numbers)}>"
        run = _defined(self.python, label, namespace)
        if first:
            run = _checked_first(run, _defined(first, f"{label[:-1]} first>", namespace), namespace, settled)
        watch(run, self._watched(label, dialect))
        return described(run, takes_list=self.takes_list, looks_at_grad_mode=self.looks_at_grad_mode)


def _calls_of(source: str) -> tuple[str, ...]:
    """The names that a program calls ATen by."""
    return tuple(dict.fromkeys(_ATEN_CALL.findall(source)))


def _defined(source: str, label: str, namespace: dict[str, Any]) -> Any:
    """The function of a text, whose lines people see in tracebacks under its label."""
    defined: dict[str, Any] = {}
    linecache.cache[label] = (len(source), None, source.splitlines(True), label)
    exec(compile(source, label, "exec"), namespace, defined)
    run = defined["run"]
    # Whoever may still show a line of it, such as a traceback, holds its code.
    weakref.finalize(run.__code__, linecache.cache.pop, label, None).atexit = False
    return run


def _checked_first(
    run: Any, first: Any, namespace: dict[str, Any], settled: Callable[[], None]
) -> Callable[..., Any]:
    surprises: list[str] = []
    code, function = run.__code__, weakref.ref(first)  # what is in the namespace must not hold the function

    def settle() -> None:
        namespace["settle"] = _nothing
        checked = function()
        if not surprises and checked is not None:
            checked.__code__ = code
            settled()

    namespace.update(settle=settle, surprises=surprises, as_laid_out=as_laid_out)
    checked: Callable[..., Any] = first
    return checked


def _nothing() -> None:
    """What another thread calls that is in its first call as well."""


def store(cache: Cache, key: str, text: Text, names: dict[str, str], library: str, dialect: Dialect) -> None:
    """Keep a program: its texts, what its names stand for, and the key of its library."""
    facts = asdict(text)
    files = {PYTHON: facts.pop("python"), f"{KERNELS}{dialect.suffix}": facts.pop("kernel_text")}
    cache.keep(key, {**files, FACTS: json.dumps({**facts, "names": names, "library": library}, indent=1)})
