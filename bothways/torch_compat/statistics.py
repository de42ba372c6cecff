"""What normalizations of halves give on the CPU, where PyTorch's fake tensors say something else.

Kernels keep statistics in the dtype of the parameters, or else in that of the input. Fake tensors have those of GPUs.
"""

from __future__ import annotations

from typing import Any

import torch

HALVES = frozenset({torch.float16, torch.bfloat16})

# By its operation: where a normalization takes its parameters, and running statistics.
_PARAMETERS: dict[str, slice] = {
    "native_layer_norm.default": slice(2, 4),
    "native_group_norm.default": slice(1, 3),
    "native_batch_norm.default": slice(1, 5),
    "_native_batch_norm_legit.default": slice(1, 5),
    "_native_batch_norm_legit.no_stats": slice(1, 3),
    "_native_batch_norm_legit_functional.default": slice(1, 5),
    "_batch_norm_with_update.default": slice(1, 5),
    "_batch_norm_with_update_functional.default": slice(1, 5),
    "_batch_norm_no_update.default": slice(1, 5),
}


def corrected(operation: Any, args: Any, result: Any) -> Any:
    """The fake tensors that an operation gives, with the dtypes that it has on the CPU."""
    name = str(operation).removeprefix("aten.")
    if name == "native_group_norm_backward.default":
        return _as(result, 0, args[1].dtype) if result is not NotImplemented and _is_half(args[1]) else result
    if name not in _PARAMETERS or result is NotImplemented or not _is_half(args[0]):
        return result
    parameters = [one for one in args[_PARAMETERS[name]] if isinstance(one, torch.Tensor)]
    dtype = parameters[0].dtype if parameters else args[0].dtype
    return _as(_as(result, 1, dtype), 2, dtype)


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype in HALVES and tensor.device.type == "cpu"


def _as(results: Any, index: int, dtype: torch.dtype) -> Any:
    """The results of an operation, one of them with another dtype."""
    if results[index] is None or results[index].dtype is dtype:
        return results
    return (*results[:index], results[index].to(dtype), *results[index + 1 :])
