"""Numbers of NumPy, which training code meets as ``np.sqrt(d)``: which types they have, and what computes with them.

They are constants like Python's own, with NumPy's types; others change from call to call (``numpy_values.py``). To
tensor operations they are the numbers of Python that they hold; ``bool_`` is not, which promotes dtypes in its own way.
NumPy need not be there.
"""

from __future__ import annotations

from typing import Any

try:
    import numpy
except ImportError:
    NUMBERS: tuple[type, ...] = ()
    SCALARS: tuple[type, ...] = ()
    TRUTHS: tuple[type, ...] = ()
    CALLABLES: tuple[type, ...] = ()
    LIMITS: tuple[type, ...] = ()
    FACTS: tuple[type, ...] = ()
    DTYPES: tuple[type, ...] = ()
    GENERATORS: tuple[Any, ...] = ()
    ARRAYS: tuple[type, ...] = ()
    PURE: frozenset[Any] = frozenset()
    ARRAY: type | None = None
else:
    ARRAY = numpy.ndarray
    NUMBERS = (numpy.float64, numpy.float32, numpy.int64, numpy.int32)
    TRUTHS = (numpy.bool_,)
    SCALARS = (*NUMBERS, *TRUTHS)
    CALLABLES = (numpy.ufunc, type(numpy.prod))
    LIMITS = (numpy.finfo, numpy.iinfo)
    FACTS = (numpy.dtype, *LIMITS)
    GENERATORS = (numpy.random.RandomState,)
    ARRAYS = (numpy.ndarray,)
    # Those of plain numbers; others have fields, whose names can change.
    _CODES = numpy.typecodes["AllInteger"] + numpy.typecodes["AllFloat"] + "?"
    DTYPES = tuple({type(numpy.dtype(code)) for code in _CODES})
    # Functions that read nothing but their arguments.
    PURE = frozenset(one for one in vars(numpy).values() if isinstance(one, numpy.ufunc)) | {
        numpy.prod, numpy.sum, numpy.mean, numpy.clip, numpy.can_cast, numpy.issubdtype, numpy.min_scalar_type,
        numpy.promote_types, numpy.result_type,
    }  # fmt: skip


def for_tensors(content: Any) -> Any:
    """A constant as tensor operations take it."""
    return content.item() if type(content) in NUMBERS else content
