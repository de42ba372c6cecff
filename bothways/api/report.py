"""``bothways.report(f, "report.html")``: what became of functions, or of a whole run, as one HTML file to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bothways.api.explain import explain
from bothways.errors import InvalidTarget
from bothways.files import target_of
from bothways.report.explaining import explained_everyone
from bothways.report.facts import Times
from bothways.report.html import explanation_page, write_page


def report(
    fn: Callable[..., Any] | Iterable[Callable[..., Any]] | None,
    path: str | os.PathLike[str] = "report.html",
    *,
    profile: Times | None = None,
) -> Path:
    """Write what became of a compiled function as one HTML file, and return its path.

    The file shows the source, with every line coloured by what became of it, the timeline of compilations, why each
    recompilation happened, graphs, kernels, guards, breaks and the memory saved for the backward. It needs no network,
    and writing it runs nothing.

    - ``fn``: what ``compile`` returned, a list of such functions, or None for all that were called.
    - ``path``: where to write the file.
    - ``profile``: what ``bothways.profile()`` measured, to add times.

    >>> double = bothways.compile(lambda x: x * 2, backend="eager")
    >>> _ = double(torch.ones(3))
    >>> import tempfile
    >>> bothways.report(double, f"{tempfile.mkdtemp()}/report.html").name
    'report.html'
    """
    target = target_of(path)
    if fn is None:
        explained = explained_everyone()
    elif callable(fn):
        explained = [explain(fn)]
    elif isinstance(fn, Iterable) and not isinstance(fn, (str, bytes, os.PathLike)):
        explained = [explain(one) for one in fn]
    else:
        raise InvalidTarget(f"report takes what compile returned, a list of those, or None for all, not {fn!r}")
    return write_page(target, explanation_page(explained, profile))
