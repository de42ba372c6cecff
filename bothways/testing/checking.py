"""``bothways.testing.check(f, args)``: a function run plainly and compiled, from the same start, and compared.

What is compared is all that a caller can see: what is returned or raised, gradients, and every object that the function
can reach and change. Afterwards everything is as it was before.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bothways.testing.compare import difference
from bothways.testing.world import World, picture

# How far kernels may be from ATen, which adds in another order, by the least precise dtype there is.
TOLERANCES: dict[torch.dtype, float] = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
EXACT = 1e-7


@dataclass(frozen=True)
class Agreement:
    """What a comparison found. It is true if plain and compiled agree; print it to read the first difference.

    ``difference`` is that one, plain on the left, and ``call`` the number of the compiled call that showed it; the
    first call is the one that is captured. ``seen`` says what the plain call returned or raised.
    """

    function: str
    difference: str | None
    call: int
    seen: str

    def __bool__(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is None:
            return f"{self.function}: {self.call} compiled calls agree with plain Python, which {self.seen}"
        head = f"{self.function}: compiled call {self.call} differs from plain Python, which {self.seen}"
        return f"{head}\n  {self.difference}"


def check(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "native",
    calls: int = 2,
    gradients: bool = True,
    tol: float | None = None,
    **options: Any,
) -> Agreement:
    """Run a function plainly and compiled, each time from the same state, and compare everything that can be observed.

    That is what it returns or raises, the gradients of what it returns, and everything it can change: arguments,
    closures, globals, attributes, parameters, random numbers. Afterwards everything is put back.

    - ``fn``: a function, method or module; one that is compiled already is compared with its original.
    - ``args``, ``kwargs``: what to call it with.
    - ``backend``, ``options``: how to compile it, as for ``bothways.compile``.
    - ``calls``: how many compiled calls to make; the second runs the program that the first has made.
    - ``gradients``: whether to call a backward of what it returns as well.
    - ``tol``: relative and absolute tolerance of floating-point values; by default it depends on the dtype.

    >>> print(bothways.testing.check(lambda x: x.sin() * 2, [torch.ones(3)]))
    <lambda>: 2 compiled calls agree with plain Python, which returned 1 tensor
    """
    kwargs = _arguments(fn, args, kwargs)
    compiled = _compiled(fn, backend, options)
    named = {"fn": fn} | {f"argument {index}": value for index, value in enumerate(args)} | kwargs
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    plainly = functools.partial(_plainly, compiled, args, kwargs)
    return compared(name, plainly, functools.partial(compiled, *args, **kwargs), named, calls, gradients, tol)


def compared(
    name: str,
    plain: Callable[[], Any],
    compiled: Callable[[], Any],
    named: Mapping[str, Any],
    calls: int = 2,
    gradients: bool = True,
    tol: float | None = None,
) -> Agreement:
    """Two calls that should do the same, each made from the same start; ``named`` leads to all that they may change."""
    world = World(named)
    expected = _observed(world, plain, gradients)
    seen = _seen(expected)
    tolerance = _tolerance(expected) if tol is None else tol
    world.rewind()
    for call in range(1, calls + 1):
        actual = _observed(world, compiled, gradients)
        world.rewind()
        differs = difference(expected, actual, tol=tolerance)
        if differs is not None:
            return Agreement(name, differs.removeprefix("result"), call, seen)
    return Agreement(name, None, calls, seen)


def _arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keywords to call a function with; raises where it cannot be called so, which is a mistake of the caller's."""
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args={args!r:.200}: a list of arguments is expected; of one argument, [x]")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs={kwargs!r:.200}: a mapping of names to arguments is expected")
    named = dict(kwargs or {})
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # it is no function, which is said elsewhere, or one in C that has none
        return named
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        raise TypeError(f"{name}{signature} cannot be called with these arguments: {error}") from None
    return named


def _compiled(fn: Callable[..., Any], backend: Any, options: dict[str, Any]) -> Callable[..., Any]:
    # Imported late: the package imports this module while it is itself being imported.
    import bothways

    try:
        bothways.history(fn)
    except TypeError:  # it is not compiled
        compiled: Callable[..., Any] = bothways.compile(fn, backend=backend, **options)
        return compiled
    return fn


def _plainly(compiled: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The original, and plain functions below it: a stance says so."""
    import bothways

    with bothways.set_stance("force_eager"):
        return compiled(*args, **kwargs)


def _observed(world: World, call: Callable[[], Any], gradients: bool) -> dict[str, Any]:
    """What a call does, as its caller sees it."""
    seen: dict[str, Any] = dict.fromkeys(("raised", "returned", "raised by the backward", "gradients"))
    tensors: list[torch.Tensor] = []
    try:
        returned = call()
        seen["returned"] = picture(returned, "returned")
        tensors = [tensor for tensor in _tensors(returned, set()) if tensor.requires_grad] if gradients else []
    except Exception as error:
        seen["raised"] = type(error).__qualname__, str(error)
    if tensors:
        try:
            tangents = [_tangent(tensor, index) for index, tensor in enumerate(tensors)]
            torch.autograd.backward(tensors, tangents, retain_graph=True)
            seen["gradients"] = [_gradient(tensor) for tensor in tensors]
        except Exception as error:
            seen["raised by the backward"] = type(error).__qualname__, str(error)
    seen["afterwards"] = world.picture()
    seen["random numbers"] = torch.get_rng_state()
    return seen


def _gradient(tensor: torch.Tensor) -> Any:
    """Of what is returned, a leaf has one to look at."""
    return None if not tensor.is_leaf or tensor.grad is None else tensor.grad.detach().clone()


def _tangent(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """The same gradient for the same result, whatever came before."""
    generator = torch.Generator().manual_seed(index)
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return drawn.to(device=tensor.device, dtype=tensor.dtype)


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _tensors(item, seen)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()), seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value):
        yield from _tensors(vars(value), seen)


def _tolerance(observed: Any) -> float:
    dtypes = {tensor.dtype for tensor in _tensors(observed, set())}
    return next((tolerance for dtype, tolerance in TOLERANCES.items() if dtype in dtypes), EXACT)


def _seen(observed: dict[str, Any]) -> str:
    if observed["raised"] is not None:
        return f"raised {observed['raised'][0]}"
    count = 0
    with contextlib.suppress(RecursionError):
        count = sum(1 for _ in _tensors(observed["returned"], set()))
    return f"returned {count or 'no'} tensor{'s' * (count > 1)}"
