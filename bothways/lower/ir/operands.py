"""Numbers among the operands of an operation, and whether kernels would compute with them as ATen does.

A number that a schema calls a Scalar must fit the dtype it meets, or ATen raises, where a kernel would wrap around.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from bothways import torch_compat
from bothways.fake import holds
from bothways.lower.ir.prims import nodes_in
from bothways.lower.ir.sizes import Fraction, Size, SizeNames, is_fake

SCALAR = frozenset({"number", "Optional[number]"})
ELEMENT = SCALAR | {"Tensor", "Optional[Tensor]"}
SURELY_HELD = 127  # by whatever dtype


@functools.cache
def _kinds(target: Any) -> dict[str | int, str]:
    """The type of each argument, by name and by position."""
    schema = torch_compat.schema_of(target)
    arguments = [] if schema is None else schema.arguments
    by_name: dict[str | int, str] = {argument.name: str(argument.type) for argument in arguments}
    return by_name | {index: str(argument.type) for index, argument in enumerate(arguments)}


def operands(sizes: SizeNames, target: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with numbers that meet elements computed exactly."""
    kinds = _kinds(target)
    return tuple(sizes.as_value(arg) if kinds.get(index) in ELEMENT else arg for index, arg in enumerate(args))


def holds_numbers(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> bool:
    """Whether the dtypes of an operation's tensors hold all Scalars it is given; ATen says what happens otherwise."""
    numbers = list(_scalars(target, args, kwargs))
    if not numbers:
        return True
    results = value if isinstance(value, (tuple, list)) else [value]
    dtypes = {node.dtype for node in nodes_in((args, kwargs))} | {fake.dtype for fake in results if is_fake(fake)}
    return all(_holds(dtype, number) for dtype in dtypes for number in numbers)


def _scalars(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    arguments: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
    for key, number in arguments:
        large = type(number) in (int, float) and not abs(number) <= SURELY_HELD
        if (large or isinstance(number, (Size, Fraction))) and _kinds(target).get(key) in SCALAR:
            yield number


def _holds(dtype: torch.dtype, number: Any) -> bool:
    if isinstance(number, Size):  # it fits 64 bits, or is refused where kernels are entered
        return dtype in (torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.bool)
    if isinstance(number, Fraction):
        return dtype.is_floating_point or dtype is torch.bool
    return holds(dtype, number)
