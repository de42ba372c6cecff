"""Tools for those who test compiled functions: backends that count and record, comparison of results.

The names follow the ones compiler writers know from PyTorch's own tests, so such tests read the same here.
"""

from bothways.testing.bisecting import bisect
from bothways.testing.cases import TestCase
from bothways.testing.checking import check
from bothways.testing.compare import difference, same
from bothways.testing.record import CompileCounter, CompileCounterWithBackend, RecordGraphs
from bothways.testing.text import normalize_gm

__all__ = [
    "CompileCounter",
    "CompileCounterWithBackend",
    "RecordGraphs",
    "TestCase",
    "bisect",
    "check",
    "difference",
    "normalize_gm",
    "same",
]
