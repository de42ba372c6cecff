"""``functools.reduce``, ``operator``'s makers of functions, ``math.prod`` and friends in Python."""

from __future__ import annotations

import _collections  # type: ignore[import-not-found]
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any


def reduce(function: Callable[[Any, Any], Any], iterable: Iterable[Any], *initial: Any) -> Any:
    iterator = iter(iterable)
    if initial:
        value = initial[0]
    else:
        try:
            value = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    for element in iterator:
        value = function(value, element)
    return value


class _Compared:
    """An object that is ordered by a three-way comparison."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, mycmp: Callable[[Any, Any], Any], obj: Any) -> None:
        self.mycmp, self.obj = mycmp, obj

    def __lt__(self, other: _Compared) -> bool:
        return self.mycmp(self.obj, other.obj) < 0

    def __gt__(self, other: _Compared) -> bool:
        return self.mycmp(self.obj, other.obj) > 0

    def __eq__(self, other: object) -> bool:
        return self.mycmp(self.obj, other.obj) == 0  # type: ignore[attr-defined]

    def __le__(self, other: _Compared) -> bool:
        return self.mycmp(self.obj, other.obj) <= 0

    def __ge__(self, other: _Compared) -> bool:
        return self.mycmp(self.obj, other.obj) >= 0


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def key(obj: Any) -> _Compared:
        return _Compared(mycmp, obj)

    return key


def itemgetter(item: Any, /, *items: Any) -> Callable[[Any], Any]:
    if not items:
        return lambda obj: obj[item]
    return lambda obj: tuple([obj[key] for key in (item, *items)])


def attrgetter(attribute: str, /, *attributes: str) -> Callable[[Any], Any]:
    names = (attribute, *attributes)
    for name in names:
        if not isinstance(name, str):
            raise TypeError("attribute name must be a string")
    if not attributes:
        return lambda obj: _follow(obj, attribute)
    return lambda obj: tuple([_follow(obj, name) for name in names])


def _follow(obj: Any, path: str) -> Any:
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if not isinstance(name, str):
        raise TypeError("method name must be a string")
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def call(obj: Any, /, *args: Any, **kwargs: Any) -> Any:
    return obj(*args, **kwargs)


def concat(a: Any, b: Any, /) -> Any:
    if not hasattr(a, "__getitem__"):
        raise TypeError(f"{type(a).__name__!r} object can't be concatenated")
    return a + b


def iconcat(a: Any, b: Any, /) -> Any:
    if not hasattr(a, "__getitem__"):
        raise TypeError(f"{type(a).__name__!r} object can't be concatenated")
    a += b
    return a


def count_of(a: Iterable[Any], b: Any, /) -> int:
    count = 0
    for element in a:
        if element is b or element == b:
            count += 1
    return count


def index_of(a: Iterable[Any], b: Any, /) -> int:
    for index, element in enumerate(a):
        if element is b or element == b:
            return index
    raise ValueError("sequence.index(x): x not in sequence")


def length_hint(obj: Any, default: int = 0, /) -> int:
    if not isinstance(default, int):
        raise TypeError(f"{type(default).__name__!r} object cannot be interpreted as an integer")
    if hasattr(type(obj), "__len__"):
        return len(obj)
    if not hasattr(type(obj), "__length_hint__"):
        return default
    hint: int = obj.__length_hint__()
    if hint is NotImplemented:
        return default
    if not isinstance(hint, int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(hint).__name__}")
    if hint < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return hint


def prod(iterable: Iterable[Any], /, *, start: Any = 1) -> Any:
    for element in iterable:
        start = start * element
    return start


def count_elements(mapping: Any, iterable: Iterable[Any], /) -> None:
    for element in iterable:
        mapping[element] = mapping.get(element, 0) + 1


STANDINS: dict[Any, Any] = {
    functools.reduce: reduce,
    functools.cmp_to_key: cmp_to_key,
    math.prod: prod,
    operator.attrgetter: attrgetter,
    operator.call: call,
    operator.concat: concat,
    operator.countOf: count_of,
    operator.iconcat: iconcat,
    operator.indexOf: index_of,
    operator.itemgetter: itemgetter,
    operator.length_hint: length_hint,
    operator.methodcaller: methodcaller,
    _collections._count_elements: count_elements,
}
