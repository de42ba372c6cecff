"""NumPy's random numbers: ``lam = np.random.beta(a, a)``, of the generator of the module or of a ``RandomState``.

A draw of one number is a line of the program, as one of Python's own generators is. What draws an array stays with
Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.core import numpy_numbers
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.capture.values.tensors.random_numbers import RandomValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.base import Value

# Methods that draw a number where they are not told how many.
DRAWS = frozenset(
    "beta binomial chisquare choice exponential gamma geometric laplace logistic lognormal normal poisson power rand "
    "randint randn random random_sample standard_exponential standard_normal triangular uniform vonmises".split()
)
AMONG: dict[str, Callable[..., range]] = {
    "randint": lambda low, high=None: range(low) if high is None else range(low, high),
    "choice": lambda a: range(a),
    "binomial": lambda n, p: range(n + 1),
}


class NumpyRandomValue(RandomValue):
    """A ``numpy.random.RandomState`` from outside."""

    draws, state, among = DRAWS, frozenset(), AMONG
    asks, puts_back = "get_state", "set_state"
    library = "numpy.random"

    def model(self) -> Any:
        return numpy_numbers.GENERATORS[0](0)


def method_of_generator(tracer: Tracer, method: Any) -> Value | None:
    """What ``np.random.beta`` is: a method of the generator that the module has; None of other methods."""
    if type(method.__self__) not in numpy_numbers.GENERATORS:
        return None
    owner = tracer.known(method.__self__)
    if owner is None:
        owner = tracer.look_at(method.__self__, tracer.inject(method.__self__, "numpy.random"))
    return BoundBuiltin(owner, method.__name__)
