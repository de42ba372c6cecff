"""``install`` and ``uninstall``: the rows of the table become changes in PyTorch's modules, and are undone.

Modules that are loaded are changed at once, the others when they are imported. Everything is changed or
nothing is: a row that fails undoes the ones before it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

from bothways.api.dropin.changes import Change, Marking, ledger
from bothways.api.dropin.imports import ImportWatch
from bothways.api.dropin.table import LINKS, ROWS
from bothways.locks import Lock
from bothways.runtime.marks import Mark

_lock = Lock()


def install() -> None:
    """Make programs written for ``torch.compile`` run on bothways, unchanged, from now on.

    Installing twice is installing once. ``uninstall()`` brings PyTorch's own names back.

    >>> bothways.install()
    >>> doubled = torch.compile(lambda x: x * 2)
    >>> bothways.uninstall()
    >>> doubled(torch.ones(2)), len(bothways.history(doubled))
    (tensor([2., 2.]), 1)
    """
    with _lock:
        if _watch.running:
            return
        _watch.start()
        try:
            for name in MODULES:
                if name in sys.modules:
                    _change(sys.modules[name])
        except BaseException:
            uninstall()
            raise


def uninstall() -> None:
    """Bring back what ``install()`` replaced; without an ``install()`` there is nothing to do.

    >>> bothways.uninstall()
    """
    with _lock:
        _watch.stop()
        ledger.undo()


def _change(module: ModuleType) -> None:
    with _lock:
        for change in changes_in(module):
            ledger.make(change)


def changes_in(module: ModuleType) -> Iterator[Change | Marking]:
    """What the tables say about one module, less the rows for names that this version of PyTorch has not."""
    for row in ROWS:
        if row.module != module.__name__:
            continue
        *path, name = row.name.split(".")
        owner = functools.reduce(getattr, path, module)
        if hasattr(owner, name):
            is_mark = isinstance(row.ours, Mark)
            yield Marking(getattr(owner, name), row.ours) if is_mark else Change(owner, name, row.ours)
        elif row.required:
            raise AttributeError(f"PyTorch {torch.__version__} has no {row.module}.{row.name}")
    if module.__name__ in LINKS:
        yield from LINKS[module.__name__](module)


# Every module a row or a link speaks of, each once.
MODULES = tuple(dict.fromkeys([*(row.module for row in ROWS), *LINKS]))

_watch = ImportWatch(MODULES, _change)
