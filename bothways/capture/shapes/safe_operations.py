"""Whether an operation of a captured graph can fail once its shapes and dtypes are known, or draw random numbers.

Guards fix shapes and dtypes, so most never raise inside a compiled graph (``Operation.fails``). Any other may raise on
the data it meets (an index out of range, a singular matrix); the program is then written so that such a call runs again
as plain Python, where the user's own ``except`` and ``finally`` are, and draws the same random numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from bothways import ops
from bothways.capture.shapes.changes import may_fail_in_place
from bothways.capture.shapes.refused_dtypes import lists_fit, narrows, parameters_fit
from bothways.fake import holds
from bothways.node_facts import facts_of_call, facts_of_node
from bothways.ops import Fails, Operation
from bothways.runtime.gradients import gradients
from bothways.runtime.mapped import Differentiated, Mapped


def may_fail(node: torch.fx.Node) -> bool:
    """Whether the operation can raise on the data it meets."""
    if node.op in ("placeholder", "output"):
        return False
    if facts_of_call(node.target).warns or facts_of_node(node).may_not_be_kept:
        return True  # where warnings are errors, or autograd would keep what it cannot
    if "out" in node.kwargs and facts_of_node(node).as_captured:
        return True  # it may be of another dtype
    if node.target is operator.getitem:
        return len(node.all_input_nodes) > 1  # an index that is a tensor can be out of range
    if node.target is operator.setitem and _fills_mask(node):
        return may_fail_in_place(node)
    operation = _of_each(ops.of_node(node))
    if operation.writes:
        base = ops.named(operation.functional)
        takes_any = operation.functional and _takes_any_data(node, base)
        return not takes_any or may_fail_in_place(node) or _narrows(node)
    return not _takes_any_data(node, operation)


def _narrows(node: torch.fx.Node) -> bool:
    examples = torch.fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta.get("example_value"))
    return narrows(ops.of_node(node).name, *examples)


def _of_each(operation: Operation) -> Operation:
    """What is done for each tensor, of an operation on lists."""
    name = operation.name.partition(".")[0]
    return ops.named(name.removeprefix("_foreach_")) if name.startswith("_foreach_") else operation


def _fills_mask(node: torch.fx.Node) -> bool:
    """Whether it is ``x[mask] = number`` with a mask for each element."""
    target, mask = (
        place.meta.get("example_value") if isinstance(place, torch.fx.Node) else None for place in node.args[:2]
    )
    if not isinstance(target, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    number: Any = node.args[2]
    is_number = type(number) in (int, float) and holds(target.dtype, number)
    return is_number and mask.dtype is torch.bool and tuple(mask.shape) == tuple(target.shape)


def _takes_any_data(node: torch.fx.Node, operation: Operation) -> bool:
    if operation.takes_numbers and not _holds_numbers(node):
        return False
    if operation.keeps_statistics and any(map(_is_of_unknown_size, _tensors(node))):
        return False  # of one value alone there are none
    dtypes = [example.dtype for example in _tensors(node)]
    known = [*dtypes, getattr(node.meta.get("example_value"), "dtype", None)]
    if operation.of_reals and any(map(_is_complex, known)):
        return False
    if operation.of_numbers and (torch.bool in known or (operation.takes_numbers and _has_truth(node))):
        return False
    if operation.fails is Fails.NEVER:
        return node.kwargs.get("rounding_mode") is None  # whole numbers cannot be divided by zero
    if operation.fails is Fails.UNLESS_GIVES_FLOAT:
        return known[-1] is not None and (known[-1].is_floating_point or known[-1].is_complex)
    if operation.fails is Fails.UNLESS_LISTS_FIT:
        return lists_fit([list(map(_example, arg)) for arg in node.args if isinstance(arg, list | tuple)])
    if operation.mixes_on_cpu and facts_of_node(node).as_captured:
        return False  # autocast, which makes them one dtype, was asked when it was captured
    return operation.fails in TAKEN and TAKEN[operation.fails](dtypes)


def _has_truth(node: torch.fx.Node) -> bool:
    """Whether one of two operands is a truth."""
    return any(type(arg) is bool for arg in node.args[:2])


def _is_complex(dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_complex


def _are_float(dtypes: Sequence[torch.dtype]) -> bool:
    return all(dtype.is_floating_point for dtype in dtypes)


def _floats_fit(dtypes: Sequence[torch.dtype]) -> bool:
    """Half and single precision meet under autocast."""
    return _are_float(dtypes) and (torch.float64 not in dtypes or len(set(dtypes)) == 1)


# Those that hold numbers that change from call to call, which are no larger than 64 bits.
WIDE = frozenset(
    {torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
# By the dtypes of the operands.
TAKEN: dict[Fails, Callable[[Sequence[torch.dtype]], bool]] = {
    Fails.UNLESS_ANY_FLOAT: lambda dtypes: any(dtype.is_floating_point for dtype in dtypes),
    Fails.UNLESS_ALL_FLOAT: _are_float,
    Fails.UNLESS_FLOATS_FIT: _floats_fit,
    Fails.UNLESS_PARAMETERS_FIT: parameters_fit,
    Fails.IF_ANY_FLOAT: lambda dtypes: not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes),
}


def _holds_numbers(node: torch.fx.Node) -> bool:
    """Whether the dtypes at hand hold the numbers that are given: ATen refuses to fill bytes with 300."""
    arguments: list[Any] = [*node.args, *node.kwargs.values()]
    numbers = [value for value in arguments if type(value) in (int, float)]
    result = node.meta.get("example_value")
    results = [result] if isinstance(result, torch.Tensor) else []
    tensors = [*_tensors(node), *results]
    if any(type(value) is complex for value in arguments) and not all(tensor.dtype.is_complex for tensor in results):
        return False
    if not all(holds(tensor.dtype, number) for number in numbers for tensor in tensors):
        return False
    symbols = [value.meta.get("example_value") for value in arguments if isinstance(value, torch.fx.Node)]
    changes = any(isinstance(symbol, (torch.SymInt, torch.SymFloat)) for symbol in symbols)
    return not changes or all(tensor.dtype in WIDE for tensor in results)


def _is_of_unknown_size(tensor: torch.Tensor) -> bool:
    """Whether how many elements there are is found only when the program runs."""
    sizes = [size.node for size in tensor.shape if isinstance(size, torch.SymInt)]  # type: ignore[attr-defined]
    return any(size.environment.is_unknown(size.expression) for size in sizes)


def _example(node: Any) -> torch.Tensor:
    example: torch.Tensor = node.meta["example_value"]
    return example


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    examples = [operand.meta.get("example_value") for operand in node.all_input_nodes]
    return [example for example in examples if isinstance(example, torch.Tensor)]


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the operation may draw random numbers; of functions that are not PyTorch's, that is not known."""
    if node.op in ("placeholder", "output") or node.target is gradients:  # its draws would be those of its forward
        return False
    if isinstance(node.target, (Mapped, Differentiated)):  # what draws is not mapped
        return False
    module = "torch" if isinstance(node.target, str) else getattr(node.target, "__module__", None) or "torch"
    known = module.partition(".")[0] in ("torch", "_operator", "builtins", "math")
    return not known or ops.of_node(node).draws
