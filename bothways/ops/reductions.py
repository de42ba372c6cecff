"""Operations over dimensions: sums, extremes, sorting, running totals, norms."""

from __future__ import annotations

from bothways.ops.operation import Fails, Says, row

ROWS = (
    row("all any", says=Says.THE_SAME),
    row("all amax amin any argmax argmin logsumexp max mean min prod std sum var", fails=Fails.NEVER),
    row("cumprod cumsum sort topk", fails=Fails.NEVER, call_fails=False),
    row("argsort", fails=Fails.NEVER),
    row("softmax log_softmax softmin norm normalize cosine_similarity", fails=Fails.UNLESS_ALL_FLOAT),
)
