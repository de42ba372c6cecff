"""A program as text, the function that it becomes, and its place in the cache on disk."""

from __future__ import annotations

import ctypes
import itertools
import json
import linecache
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bothways.lower.build import load
from bothways.lower.cache import Cache
from bothways.lower.call_library import entry
from bothways.lower.dump import dump
from bothways.lower.spelling import SCOPE
from bothways.lower.wrapper import as_laid_out
from bothways.runtime.generated import Generated, keep

PYTHON, C, FACTS = "program.py", "kernels.c", "facts.json"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Text:
    """The Python and the C of one graph. ``name`` is for people.

    ``functions`` are those of the library that Python calls, with a letter for each of their arguments.
    """

    name: str
    python: str
    c: str
    functions: dict[str, str]
    takes_list: bool
    looks_at_grad_mode: bool

    def show(self, namespace: dict[str, Any]) -> None:
        """Let people read it who asked for it."""
        keep(Generated(self.name, {"C": self.c, "Python": self.python} if self.c else {"Python": self.python}))
        dump(self.name, self.c, self.python, namespace)

    def function(
        self,
        namespace: dict[str, Any],
        library: ctypes.CDLL | None,
        first: str = "",
        settled: Callable[[], None] = lambda: None,
    ) -> Callable[..., Any]:
        """The function to call.

        ``first`` is the text of its first call, which looks whether ATen lays out its results as expected;
        ``settled`` is called when it does.
        """
        for name, kinds in self.functions.items():
            namespace[name] = entry(getattr(library, name), kinds)
        label = f"<bothways native {self.name} {next(_numbers)}>"
        linecache.cache[label] = (len(self.python), None, self.python.splitlines(True), label)
        run = _defined(self.python, label, namespace)
        if first:
            run = _checked_first(run, _defined(first, label, namespace), namespace, settled)
        made: Any = run
        made.looks_at_grad_mode = self.looks_at_grad_mode
        if self.takes_list:
            made._boxed_call = True
        return run


def _defined(source: str, label: str, namespace: dict[str, Any]) -> Any:
    found: dict[str, Any] = {}
    exec(compile(source, label, "exec"), namespace, found)
    return found["run"]


def _checked_first(
    run: Any, first: Any, namespace: dict[str, Any], settled: Callable[[], None]
) -> Callable[..., Any]:
    surprises: list[str] = []

    def settle() -> None:
        if not surprises:
            first.__code__ = run.__code__
            settled()

    namespace.update(settle=settle, surprises=surprises, as_laid_out=as_laid_out)
    checked: Callable[..., Any] = first
    return checked


def store(cache: Cache, key: str, text: Text, names: dict[str, str], library: str) -> None:
    """Keep a program: its texts, what its names stand for, and the key of its library."""
    facts = asdict(text)
    files = {PYTHON: facts.pop("python"), C: facts.pop("c")}
    cache.keep(key, {**files, FACTS: json.dumps({**facts, "names": names, "library": library}, indent=1)})


def recall(cache: Cache, key: str) -> Callable[..., Any] | None:
    """The function of a program that was stored; None when it, or its library, is there no more."""
    files = cache.read(key)
    if files is None:
        return None
    facts = json.loads(files[FACTS])
    names, library_key = facts.pop("names"), facts.pop("library")
    library = load(library_key, cache) if library_key else None
    if library_key and library is None:
        return None
    text = Text(python=files[PYTHON].decode(), c=files[C].decode(), **facts)
    namespace = {name: eval(expression, dict(SCOPE)) for name, expression in names.items()}
    text.show(namespace)
    return text.function(namespace, library)
