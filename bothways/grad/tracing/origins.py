"""Which line of the user's each recorded operation comes from, in the backward too.

While a captured graph is traced, its nodes run one by one, and the line of the node that runs is noted with the
numbers autograd gives to what it computes. An operation of the backward belongs to the node whose number it has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.fake import of_parts
from bothways.fake.lists import leaves_versions
from bothways.grad.tracing.checked import check_in_trace, is_in_trace, without_data
from bothways.grad.tracing.fused import update_of
from bothways.grad.tracing.overlaps import Overlaps, WritesShared
from bothways.grad.tracing.restoring import layouts_of, restore_layouts
from bothways.grad.tracing.scaling import scaling_of
from bothways.grad.tracing.traced import ReadsData
from bothways.torch_compat.said import said

_active: ContextVar[Origins | None] = ContextVar("origins", default=None)


class Origins:
    """The lines of one trace."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._lines: list[str] = []

    def note(self, line: str) -> None:
        """Everything computed from now on comes from this line."""
        self._numbers.append(torch_compat.next_autograd_number())
        self._lines.append(line)

    def now(self) -> str:
        """The line that the operation which runs now comes from; nothing when that is not known."""
        number = torch_compat.running_autograd_number()
        if number is None:
            return self._lines[-1] if self._lines else ""
        place = bisect_right(self._numbers, number) - 1
        return self._lines[place] if place >= 0 else ""

    def __enter__(self) -> Origins:
        self._token = _active.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.reset(self._token)


def noting_origins(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph's forward, which notes the lines it comes from while it is traced."""

    def run(*inputs: Any) -> Any:
        origins = _active.get()
        return module.forward(*inputs) if origins is None else _Noting(module, origins).run(*inputs)

    return run


def written_list(target: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that an operation on lists of them, such as ``_foreach_add_``, changes."""
    name = getattr(target, "__name__", "")
    if not name.startswith("_foreach_") or not name.endswith("_") or not args or not isinstance(args[0], (list, tuple)):
        return []
    return [tensor for tensor in args[0] if not tensor.is_inference()]


def _lists(args: Sequence[Any]) -> list[Sequence[Any]]:
    """The lists of tensors among arguments."""
    return [arg for arg in args if isinstance(arg, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in arg)]


def reads_elsewhere(written: Sequence[torch.Tensor], read: Sequence[Any]) -> bool:
    """Whether one of a list is read for another of it, which eager does after it was changed."""
    places = {torch_compat.storage_of(tensor): place for place, tensor in enumerate(written)}
    lists = (items for items in read if isinstance(items, (list, tuple)))
    return any(
        isinstance(item, torch.Tensor) and places.get(torch_compat.storage_of(item), place) != place
        for items in lists
        for place, item in enumerate(items)
    )


class _Noting(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, origins: Origins) -> None:
        super().__init__(module)
        self.extra_traceback = False  # a page about the graph, in the words of an error that people may read
        self._origins, self._overlaps = origins, Overlaps()

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        update = update_of(target, args, kwargs) or scaling_of(target, args, kwargs)
        if update is not None:
            return update()
        product = of_parts(target, args)
        if product is not None:
            return product(*args, **kwargs)
        checked = without_data(target, args, kwargs)
        if checked is not None:
            return checked
        written = written_list(target, args)
        if written and reads_elsewhere(args[0], args[1:]):
            raise WritesShared("an operation on lists reads in one place what it has written in another")
        versions = list(map(torch_compat.version_of, written))
        result = super().call_function(target, args, kwargs)
        is_counted = not leaves_versions(getattr(target, "__name__", ""), *_lists(args))
        if written and is_counted and versions == list(map(torch_compat.version_of, written)):
            # What is changed as one of a list is counted in eager, and not by functionalization.
            torch.autograd.graph.increment_version(written)
        return result

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target == "bernoulli_" and not args[0].is_contiguous():
            # Eager draws in the order in which memory lies; what functionalization makes of it, in that of the indices.
            return args[0].copy_(torch.empty_like(args[0]).bernoulli_(*args[1:], **kwargs))
        product = of_parts(target, args)
        if product is not None:
            return product(*args, **kwargs)
        checked = without_data(getattr(torch, target, None), args, kwargs)
        return super().call_method(target, args, kwargs) if checked is None else checked

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.op.startswith("call"):
            self._origins.note(node.meta.get("stack_trace", ""))
        arguments = [self.env[argument] for argument in node.all_input_nodes]
        before, layouts = self._overlaps.before(arguments), layouts_of(arguments)
        try:
            if is_in_trace(node):
                return check_in_trace(*arguments)
            result = super().run_node(node)
        except torch_compat.fake_tensor_errors() as error:
            raise ReadsData(node, said(error)) from error
        self._overlaps.after(node, before, result)
        restore_layouts(node, layouts)
        return result
