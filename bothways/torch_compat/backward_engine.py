"""The autograd engine's own door for compilers of whole backwards, and where Python looks the engine up.

The engine hands over each node that it would run (``EngineCalls`` has the methods that it calls, as it calls them), and
remembers what came back by the structure of the autograd graph. Nothing else in the package knows this interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import get_gradient_edge
from torch.autograd.variable import Variable

_door: Any = torch._C._dynamo.compiled_autograd

# C++ binds the formula of each kind of node once in a process, by its name.
FORMULAS: dict[str, Callable[..., Any]] = {}

# Runs a hook that lives in C++ (``retain_grad``), by its number in the backward that runs now.
run_cpp_hook: Callable[[int, torch.Tensor], torch.Tensor] = _door.call_cpp_tensor_pre_hooks

Tensors = list[torch.Tensor | None]
# How a gradient has to be: (options, sizes, whether of a subclass, dtype), as C++ packs it; None where none is wanted.
Wanted = Sequence[Any]


class RecordsBackward(Protocol):
    """Who writes a backward down. Tensors it is given are those it gave, or stands for real ones by them."""

    def begin(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> Any: ...
    def node(self, name: str) -> None: ...
    def formula(self, name: str, grads: Tensors, args: Sequence[Any], wanted: Wanted) -> Tensors: ...
    def check(self, grads: Tensors, wanted: Wanted) -> Tensors: ...
    def add(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor: ...
    def custom(self, grads: Tensors, wanted: Wanted, saved: Sequence[Any], place: int, node: Any) -> Tensors: ...
    def accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> torch.Tensor: ...
    def tensor_hook(self, grads: Tensors, hook: int, place: int) -> Tensors: ...
    def cpp_hook(self, grads: Tensors, hook: int, place: int) -> Tensors: ...
    def pre_hook(self, grads: Tensors, hook: int) -> Tensors: ...
    def post_hook(self, results: Tensors, grads: Tensors, hook: int) -> Tensors: ...
    def leaf_hook(self, leaf: torch.Tensor, hook: int) -> None: ...
    def unpack(self, hook: int | None, packed: int) -> torch.Tensor: ...
    def begin_slices(self, grads: Tensors, base: Any, view: Any) -> Tensors: ...
    def end_slices(self, wanted: Sequence[bool], whole: Any, results: Tensors, part: Any) -> Tensors: ...
    def end(self, outputs: Tensors) -> tuple[Callable[..., Any], Any]: ...


class EngineCalls:
    """What the engine calls while it hands over a backward: its names and arguments, turned into ours."""

    def __init__(self, recorder: RecordsBackward) -> None:
        self.recorder = recorder

    def begin_capture(self, inputs: Any, sizes: Any, scalars: Any, *origins_and_modes: Any) -> Any:
        return ("0", *self.recorder.begin(inputs, sizes, scalars))

    def set_node_origin(self, name: str, index: int, python_node: Any) -> None:
        self.recorder.node(name)

    def bind_function(self, name: str, function: Any, is_custom: bool, is_traceable: bool) -> str:
        if is_custom:  # of a C++ extension; several may have one name
            count = sum(known.partition("/")[0] == name for known in FORMULAS)
            name = f"{name}/{count}" if count else name
        FORMULAS[name] = function
        return name

    def apply_functional(self, name: str, grads: Tensors, args: Any, wanted: Wanted) -> Tensors:
        return self.recorder.formula(name, grads, args, wanted)

    def validate_outputs(self, name: str, grads: Tensors, args: Any, wanted: Wanted) -> Tensors:
        return self.recorder.check(grads, wanted)

    def accumulate(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.recorder.add(left, right)

    def proxy_call_backward(
        self, grads: Any, wanted: Any, saved: Any, place: int, node: Any, *state: Any
    ) -> tuple[Any, ...]:
        return tuple(self.recorder.custom(list(grads), wanted, saved, place, node))

    def accumulate_grad(self, leaf: torch.Tensor, *grads: Any) -> Any:
        # torch 2.13 hands over the gradient that is there already, and takes the new one.
        returns = len(grads) == 3
        accumulated = self.recorder.accumulate(leaf, grads[1] if returns else grads[0])
        return accumulated if returns else None

    def tensor_pre_hook(self, grads: Tensors, hook: int, place: int) -> Tensors:
        return self.recorder.tensor_hook(grads, hook, place)

    def cpp_tensor_pre_hook(self, grads: Tensors, hook: int, place: int) -> Tensors:
        return self.recorder.cpp_hook(grads, hook, place)

    def pre_hook(self, grads: Tensors, hook: int) -> Tensors:
        return self.recorder.pre_hook(grads, hook)

    def post_hook(self, results: Tensors, grads: Tensors, hook: int) -> Tensors:
        return self.recorder.post_hook(results, grads, hook)

    def post_acc_grad_hook(self, leaf: torch.Tensor, hook: int) -> list[torch.Tensor]:
        self.recorder.leaf_hook(leaf, hook)
        return [leaf]

    def unpack_hook(self, hook: int | None, packed: int) -> torch.Tensor:
        return self.recorder.unpack(hook, packed)

    def call_copy_slices_prologue(self, grads: Tensors, *layouts: Any) -> Tensors:
        return self.recorder.begin_slices(grads, layouts[:3], layouts[3:])

    def call_copy_slices_epilogue(self, wanted: Any, whole: Any, results: Tensors, part: Any) -> Tensors:
        return self.recorder.end_slices(wanted, whole, results, part)

    def end_capture(self, outputs: Tensors) -> tuple[Callable[..., Any], Any]:
        return self.recorder.end(outputs)

    def log_compile_reasons(self, reasons: list[str]) -> None:
        """Why the engine asks; ours are told elsewhere."""

    def close(self) -> None:
        """The engine is done, or has failed."""


def set_recorder(make: Callable[[], RecordsBackward] | None, dynamic: bool = False) -> None:
    """Have the engine hand over what it would run, to a recorder that is made when it meets a new structure."""
    _door.set_autograd_compiler(None if make is None else lambda: EngineCalls(make()), dynamic)


def forget_structures() -> None:
    """Have the engine forget what came of each structure."""
    _door.clear_cache()


def engine() -> Any:
    """What Python calls to run a backward."""
    return Variable._execution_engine


def set_engine(engine: Any) -> None:
    Variable._execution_engine = engine


def node_of(root: Any) -> Any:
    """The node that a backward begins with at a tensor or an edge; a leaf's is the one that accumulates."""
    return (get_gradient_edge(root) if isinstance(root, torch.Tensor) else root).node


def sequence_number(node: Any) -> int:
    """When a node was made, among those of its thread."""
    return int(node._sequence_nr())


def function_of(node: Any) -> type[torch.autograd.Function]:
    """The custom function that a node is of."""
    function: type[torch.autograd.Function] = node._forward_cls
    return function


def results_of(node: Any) -> Sequence[Any]:
    """Sizes, dtypes and devices of what a node computed in the forward."""
    results: Sequence[Any] = node._input_metadata
    return results
