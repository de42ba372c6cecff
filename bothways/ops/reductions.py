"""Operations over dimensions: sums, extremes, sorting, running totals, norms."""

from __future__ import annotations

from bothways.ops.operation import Fails, Says, row

ROWS = (
    row("all any", says=Says.THE_SAME),
    row("all amax amin any argmax argmin logsumexp max mean min prod sum", fails=Fails.NEVER),
    row("std var", fails=Fails.UNLESS_ALL_FLOAT),
    row("cumprod cumsum sort topk", fails=Fails.NEVER, call_fails=False),
    row("argsort", fails=Fails.NEVER),
    row("isin", meta_is_wrong=True),  # whose result is contiguous
    row("amax amin argmax argmin argsort max min sort topk", of_reals=True),
    row("argmax argmin topk", of_numbers=True),
    row("softmax log_softmax softmin norm normalize cosine_similarity", fails=Fails.UNLESS_ALL_FLOAT),
)
