"""``with bothways.profile() as p:`` measures every kernel and every ATen call of compiled functions inside."""

from __future__ import annotations

from bothways.report.profile import Profile


def profile() -> Profile:
    """Measure some steps: time and bytes of each kernel and of each ATen call, with the lines they come from.

    What comes back is a context manager; printed, it is a table, ``p.html("profile.html")`` is the report with times,
    and ``p.trace("trace.json")`` opens in Chrome or Perfetto. Kernels that run together are built once more, with a
    clock between them, when they first run inside; so let a step or two pass first. Outside of the block nothing is
    measured, and nothing costs anything.

    >>> f = bothways.compile(lambda x: (x @ x).relu() + 1)
    >>> x = torch.ones(300, 300)
    >>> _ = f(x)
    >>> with bothways.profile() as p:
    ...     _ = f(x)
    >>> sorted((row.kind, row.count) for row in p.rows)
    [('ATen', 1), ('kernel', 1)]
    """
    return Profile()
