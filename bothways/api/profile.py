"""``with bothways.profile() as p:`` measures every kernel and every ATen call of compiled functions inside."""

from __future__ import annotations

from bothways.report.profile import Profile


def profile() -> Profile:
    """Measure some steps: time and bytes of each kernel and of each ATen call, with the lines they come from.

    Use it in a ``with`` block; then print it for a table, or write the report with times (``p.html("profile.html")``)
    or a trace for Chrome or Perfetto (``p.trace("trace.json")``). Kernels that run together are built once more, with a
    clock between them, when they first run inside the block, so include a few steps. Outside it, profiling costs
    nothing.

    >>> f = bothways.compile(lambda x: (x @ x).relu() + 1)
    >>> x = torch.ones(300, 300)
    >>> _ = f(x)
    >>> with bothways.profile() as p:
    ...     _ = f(x)
    >>> sorted((row.kind, row.count) for row in p.rows)
    [('ATen', 1), ('kernel', 1)]
    """
    return Profile()
