"""What ``torch.Tensor.__torch_function__`` does for subclasses that have no handler of their own."""

from __future__ import annotations

from typing import Any

import torch

from bothways import torch_compat


def default_torch_function(
    cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with torch_compat.without_subclass_functions():
        result = func(*args, **({} if kwargs is None else kwargs))
        return convert(result, cls) if torch_compat.gives_subclass(func) else result


def convert(result: Any, cls: Any) -> Any:
    """The same with tensors of a class in place of tensors."""
    if cls is torch.Tensor:
        return result
    if isinstance(result, torch.Tensor) and not isinstance(result, cls):
        result = result.as_subclass(cls)
    if isinstance(result, (tuple, list)):
        result = type(result)(convert(item, cls) for item in result)
    return result
