"""Shapes without data: what an operation would return, worked out on thin tensors.

The commonest operations are predicted from Fakes alone; others run on thin tensors (``bothways.fake``), below
PyTorch's own autograd, which tells what requires a gradient. What those cannot answer goes to PyTorch's FakeTensor,
which takes ten times as long and a second to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from bothways import torch_compat
from bothways.capture.shapes.outlines import OUTLINES, is_of_a_library
from bothways.capture.shapes.shape_rules import Prediction, contiguous_stride, predict
from bothways.errors import Unsupported
from bothways.fake import NeedsData, NotThin, ThinMode, ThinTensor, fake_tensor_mode, of_parts, thin_outline
from bothways.symbols import hint

MODE = ThinMode()


class Fake:
    """A tensor without data: the device it stands for, and a thin tensor that is made when it is needed."""

    __slots__ = ("_meta", "_prediction", "device")

    def __init__(self, meta: torch.Tensor | None, device: torch.device, prediction: Prediction | None = None) -> None:
        self._meta, self.device, self._prediction = meta, device, prediction

    @property
    def meta(self) -> torch.Tensor:
        if self._meta is None:
            assert self._prediction is not None
            with _as_usual():
                self._meta = self.outline()
                if self._prediction.requires_grad:
                    self._meta = _computed(self._meta)
        return self._meta

    def outline(self) -> torch.Tensor:
        """A thin tensor of the same sizes and dtype, outside of autograd."""
        return thin_outline(self.shape, self.stride, self.dtype, self.device)

    @property
    def _facts(self) -> Prediction | torch.Tensor:
        # In-place operations change the thin tensor, so once it exists it is the truth.
        return self._meta if self._meta is not None else self._prediction  # type: ignore[return-value]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._facts.shape)

    @property
    def stride(self) -> tuple[int, ...]:
        return self._meta.stride() if self._meta is not None else self._prediction.stride  # type: ignore[union-attr]

    @property
    def dtype(self) -> torch.dtype:
        return self._facts.dtype

    @property
    def requires_grad(self) -> bool:
        return self._facts.requires_grad

    @property
    def is_new_leaf(self) -> bool:
        """Whether an operation has made a leaf; what is predicted was computed."""
        return self._meta is not None and self._meta.requires_grad and self.refusal is None and self._meta.is_leaf

    @property
    def is_contiguous(self) -> bool:
        return self.stride == contiguous_stride(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether a pointwise result would have these strides; the sure case is a permutation of contiguous."""
        sizes_by_stride = sorted(zip(self.stride, self.shape, strict=True), reverse=True)
        return all(size > 1 for size in self.shape) and [stride for stride, _ in sizes_by_stride] == list(
            contiguous_stride(tuple(size for _, size in sizes_by_stride))
        )

    @property
    def refusal(self) -> str | None:
        """What autograd says where it refuses to tell how the tensor was computed."""
        try:
            self.meta.is_leaf  # noqa: B018
        except RuntimeError as error:
            return str(error)
        return None

    @property
    def is_refused(self) -> bool:
        """Whether autograd refuses operations on it: it is a view, and what it lies in was changed."""
        return self._meta is not None and bool(torch_compat.version_of(self._meta)) and self.refusal is not None

    def become(self, other: torch.Tensor) -> None:
        """Take over what an operation on a stand-in has changed about it."""
        facts = (tuple(other.shape), other.stride(), other.dtype, other.requires_grad)
        if facts != (self.shape, self.stride, self.dtype, self.requires_grad):
            self._meta, self.device = fake_like(other).meta, other.device


class FakeFailure(Exception):
    """No fake result: the operation raised, or needs data it has not."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SpecialLayout(Exception):
    """What comes out has no strides that would say where its elements are."""


class NonLeaf(torch.autograd.Function):
    """Gives a tensor an autograd history, as one computed before the call has it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def fake_like(tensor: torch.Tensor, outline: tuple[Any, Any] | None = None) -> Fake:
    """A fake with the tensor's sizes and strides, or those given, its dtype and place in the autograd graph."""
    shape, stride = outline or (tuple(tensor.shape), tensor.stride())
    with _as_usual():
        return Fake(with_history(thin_outline(shape, stride, tensor.dtype, tensor.device), tensor), tensor.device)


def _as_usual() -> AbstractContextManager[Any]:
    """What was there before is no tensor of inference mode, though it may be in that mode that it is first met."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def with_data_of(fake: Fake, other: Fake) -> Fake:
    """The leaf that ``fake`` is after it took over the data of another."""
    return Fake(with_history(other.outline(), fake.meta), other.device)


def with_history(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if not like.requires_grad:
        return tensor
    return tensor.requires_grad_() if _is_leaf(like) else _computed(tensor)


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf; a view of which autograd refuses to tell was computed."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one that autograd takes for the result of an operation."""
    with tensor.fake_mode, torch.enable_grad():  # type: ignore[attr-defined]
        result: torch.Tensor = NonLeaf.apply(tensor.requires_grad_())
    return result


def run(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call ``function`` with Fakes in place of tensors; the result holds Fakes where tensors would be.

    A Fake given in comes out as the same Fake when the operation returns its own argument.
    """
    autocast = torch_compat.is_any_autocast_enabled()
    prediction = None if autocast else predict(function, args, kwargs)
    if prediction is not None and not any(isinstance(arg, Fake) and arg.is_refused for arg in args):
        return Fake(None, prediction.device, prediction)
    fakes = list(_fakes_in((args, kwargs)))
    known = {id(fake.meta): fake for fake in fakes}
    outline = _outline_of(function)
    if outline is not None and (
        is_of_a_library(function, (fake.device.type for fake in fakes))
        or (not autocast and (any(map(_is_symbolic, fakes)) or _has_symbols((args, kwargs))))
    ):
        try:
            with MODE:
                result = outline(*_replace(args, _meta), **_replace(kwargs, _meta))
            return AsCaptured(_map_tensors(result, _from_result))
        except Unsupported:
            raise
        except Exception:  # the arguments are not as the row expects: the operation itself says what it makes of them
            pass
    try:
        # Autocast remembers casted weights by tensor; those of fakes must not be found there later.
        with MODE, torch_compat.no_autocast_cache() if autocast else nullcontext():
            values, options = _replace(args, _meta), _replace(kwargs, _meta)
            if "lr" in options and any(function is update for update in torch_compat.FUSED_UPDATES):
                # No size depends on a rate, and C++ wants plain numbers; the graph has what they are computed from.
                options = {name: hint(value) for name, value in options.items()}
            result = (of_parts(function, values) or function)(*values, **options)
    except NeedsData as error:
        raise FakeFailure(error) from error
    except NotThin:
        return _run_on_torch_fakes(function, args, kwargs, fakes)
    except Unsupported:  # a number is asked for that is not there
        raise
    except Exception as error:
        if torch_compat.wants_numbers(error):
            return _run_on_torch_fakes(function, args, kwargs, fakes)
        raise FakeFailure(error) from error
    return _map_tensors(result, lambda tensor: known.get(id(tensor)) or _from_result(tensor))


@dataclass
class AsCaptured:
    """The result of an operation that has to run as it was captured, when others are compiled for all sizes."""

    result: Any


def _outline_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    try:
        return OUTLINES.get(function)
    except TypeError:  # which has no hash
        return None


def _is_symbolic(fake: Fake) -> bool:
    return _has_symbols(fake.shape)


def _has_symbols(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(map(_has_symbols, tree))
    return any(map(_has_symbols, tree.values())) if type(tree) is dict else type(tree) is torch.SymInt


def _meta(fake: Fake) -> torch.Tensor:
    return fake.meta


def _from_result(tensor: torch.Tensor) -> Fake:
    return Fake(tensor, tensor.device) if type(tensor) is ThinTensor else fake_like(tensor)


def _run_on_torch_fakes(function: Callable[..., Any], args: Any, kwargs: Any, fakes: list[Fake]) -> Any:
    mode = fake_tensor_mode()
    stand_ins = {id(fake): torch_fake(mode, fake) for fake in fakes}
    known = {id(stand_ins[id(fake)]): fake for fake in fakes}

    def stand_in(fake: Fake) -> torch.Tensor:
        return stand_ins[id(fake)]

    try:
        with mode:
            result = function(*_replace(args, stand_in, int), **_replace(kwargs, stand_in, int))
    except Exception as error:
        raise FakeFailure(error) from error
    _check_resized(function, args, kwargs, stand_in)
    for fake in fakes:
        changed = stand_in(fake)
        if changed.requires_grad and not (changed.is_floating_point() or changed.is_complex()):
            raise FakeFailure(ValueError(f"{changed.dtype} takes nothing that has a gradient"))
        fake.become(changed)
    return _map_tensors(result, lambda tensor: known.get(id(tensor)) or _from_torch_fake(tensor))


def _check_resized(
    function: Callable[..., Any], args: Any, kwargs: Any, stand_in: Callable[[Fake], torch.Tensor]
) -> None:
    """Raise where what ``out=`` names gets other sizes, and strides that are not known for certain: most kernels lay it
    out like a result of their own, some without gaps, and PyTorch's fakes mostly say the latter."""
    outs = list(_fakes_in(kwargs.get("out")))
    if all(out.shape == tuple(stand_in(out).shape) for out in outs):
        return
    others = {name: value for name, value in kwargs.items() if name != "out"}
    try:
        with stand_in(outs[0]).fake_mode:  # type: ignore[attr-defined]
            result = function(*_replace(args, stand_in, int), **_replace(others, stand_in, int))
    except Exception as error:
        raise FakeFailure(error) from error
    results = result if isinstance(result, (tuple, list)) else [result]
    if [each.stride() for each in results] != [stand_in(out).stride() for out in outs]:
        raise FakeFailure(NotImplementedError("out= gets other sizes, and strides that only a kernel knows"))


def _from_torch_fake(tensor: torch.Tensor) -> Fake:
    if not torch_compat.is_strided(tensor):
        raise FakeFailure(SpecialLayout("the result is a tensor of a special layout"))
    return fake_like(tensor)


def torch_fake(mode: Any, fake: Fake) -> torch.Tensor:
    # PyTorch's fakes do not know our symbols: here they are the numbers of this call.
    shape, stride = [int(size) for size in fake.shape], [int(step) for step in fake.stride]
    meta = torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")
    return with_history(torch_compat.fake_tensor(mode, meta, fake.device), fake.meta)


def _fakes_in(tree: Any) -> Iterator[Fake]:
    kind = type(tree)
    if kind is Fake:
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _fakes_in(item)
    elif kind is dict:
        for item in tree.values():
            yield from _fakes_in(item)
    elif kind is slice:
        yield from _fakes_in((tree.start, tree.stop, tree.step))


def _replace(tree: Any, on_fake: Callable[[Fake], Any], on_size: Callable[[Any], Any] | None = None) -> Any:
    """Rebuild nested arguments with each Fake, and each symbolic size, replaced."""
    kind = type(tree)
    if kind is Fake:
        return on_fake(tree)
    if kind is tuple or kind is list:
        return kind(_replace(item, on_fake, on_size) for item in tree)
    if kind is dict:
        return {key: _replace(item, on_fake, on_size) for key, item in tree.items()}
    if kind is slice:
        return slice(*(_replace(part, on_fake, on_size) for part in (tree.start, tree.stop, tree.step)))
    if kind is torch.SymInt and on_size is not None:
        return on_size(tree)
    return tree


def _map_tensors(result: Any, convert: Callable[[torch.Tensor], Fake]) -> Any:
    """The same structure with Fakes for tensors; structured results (``torch.return_types``) keep their type."""
    if isinstance(result, torch.Tensor):
        return convert(result)
    if type(result) is list or type(result) is tuple:
        return type(result)(_map_tensors(item, convert) for item in result)
    if isinstance(result, tuple) and not isinstance(result, torch.Size):
        return Structured(type(result), tuple(_map_tensors(item, convert) for item in result))
    return result


@dataclass
class Structured:
    """A named tuple of torch's own (``torch.return_types.max`` …) with Fakes for its fields."""

    kind: type
    items: tuple[Any, ...]
