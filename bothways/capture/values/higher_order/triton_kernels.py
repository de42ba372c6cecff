"""Kernels that users write in Triton, launched inside a compiled function: ``kernel[grid](x, y, n, BLOCK=128)``.

A launch writes into tensors it is given and changes nothing else about them, so it is one node of the graph; a grid
that is a function is asked while the launch is captured. Triton itself is never imported from here.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Source
from bothways.capture.values.autograd.autograd_arguments import NodeArguments
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value
from bothways.runtime.nodes import LaunchKernel

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def find(tracer: Tracer, obj: Any, source: Source) -> Value | None:
    """The Value of one of Triton's objects, None for anything else."""
    for kind in type(obj).__mro__:
        if policy.module_of(kind).startswith("triton."):
            make = _KINDS.get(kind.__name__)
            if make is not None:
                tracer.guard("{s0} is {c0}", source, obj)
                return make(obj)
    return None


class KernelValue(Value):
    """A compiled-on-demand kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def python_type(self) -> type:
        return type(self.kernel)

    def constant(self) -> Any:
        return self.kernel

    def hash_key(self, tracer: Tracer) -> Hashable:
        return id(self.kernel)

    def identity(self) -> object:
        return self.kernel

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return LauncherValue(self.kernel, key.realize())

    def rebuild(self, emitter: Any) -> str:
        return str(emitter.inject(self.kernel, self.kernel.__name__))


class LauncherValue(Value):
    """``kernel[grid]``."""

    def __init__(self, kernel: Any, grid: Value) -> None:
        self.kernel, self.grid = kernel, grid

    def python_type(self) -> type:
        return type(lambda: None)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        arguments = NodeArguments(tracer, lambda value: True)
        positional, keywords = arguments.add_all(args), arguments.add_all(list(kwargs.values()))
        grid = self._grid(tracer, args, kwargs)
        launch = LaunchKernel(self.kernel, grid, positional, dict(zip(kwargs, keywords, strict=True)))
        tracer.graph.node(launch, arguments.given, None)
        return LaunchedValue()

    def _grid(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
        grid = self.grid
        if not grid.is_constant:
            by_name = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
            meta = DictValue.from_pairs(tracer, [(ConstantValue(name), value) for name, value in by_name.items()])
            grid = protocols.call(tracer, grid, [meta]).realize()
        try:
            blocks = grid.constant()
        except NotConstant:
            tracer.stop("call_unknown", f"the grid of {self.kernel.__name__} is {grid.describe()}")
        return tuple(blocks) if isinstance(blocks, (tuple, list)) else (blocks,)


class LaunchedValue(Value):
    """What a launch returns: a handle on the compiled kernel, which captured code may only throw away."""

    def python_type(self) -> type:
        return object

    def truth(self, tracer: Tracer) -> bool:
        tracer.stop("call_unknown", "the result of a kernel launch is looked at")


class FoldedValue(Value):
    """A function of Triton's that computes with numbers: ``triton.cdiv``, ``triton.next_power_of_2``."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def python_type(self) -> type:
        return type(self.function)

    def constant(self) -> Any:
        return self.function

    def identity(self) -> object:
        return self.function

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return constant_value(tracer.run_const(self.function, *positional, **keywords), tracer)


# An autotuned kernel picks its sizes when it runs; what its grid will be cannot be asked before.
_KINDS: dict[str, Any] = {"JITFunction": KernelValue, "ConstexprFunction": FoldedValue}
