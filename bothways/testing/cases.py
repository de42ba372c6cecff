"""The base class for unittest-style tests: every test starts and ends with nothing compiled.

Programs, recompilation counts and statistics of one test can therefore not reach the next.
"""

from __future__ import annotations

import unittest
from typing import Any

from bothways.testing.compare import difference


class TestCase(unittest.TestCase):
    """A unittest case that calls ``bothways.reset()`` around each test.

    - ``methodName``: the test to run, as in ``unittest.TestCase``.

    >>> class TestDoubling(bothways.testing.TestCase):
    ...     def test_doubling(self):
    ...         double = bothways.compile(lambda x: x * 2)
    ...         self.assertSame(double(torch.ones(2)), torch.full((2,), 2.0))
    """

    def setUp(self) -> None:
        super().setUp()
        _reset()

    def tearDown(self) -> None:
        _reset()
        super().tearDown()

    def assertSame(self, expected: Any, actual: Any, **options: Any) -> None:
        """Fail with the place of the first difference; ``options`` are those of ``testing.same``."""
        differs = difference(expected, actual, **options)
        if differs is not None:
            self.fail(differs)


def _reset() -> None:
    # Imported late: the package imports this module while it is itself being imported.
    import bothways

    bothways.reset()
