"""Operations that C++ makes of others by plain sizes, or that take such as a number: what they return, for sizes that
are symbols.

Each row is a function of the operation's own arguments that gives tensors laid out as the operation's results are, by
operations that take symbolic sizes. Only the shapes count: the graph has the operation itself, which runs as it was
captured, between compiled parts. What a row is not sure of raises ``NotThin``. Recurrent layers on GPUs are asked about
here for plain sizes as well.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from bothways import torch_compat
from bothways.fake import NotThin

# A scale is used as a fraction where that gives exactly what multiplying as floats gives.
LARGEST_FACTOR = 2**16


def _kron(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    rank = max(one.dim(), other.dim())
    left = (1,) * (rank - one.dim()) + tuple(one.shape)
    right = (1,) * (rank - other.dim()) + tuple(other.shape)
    spread = one.reshape([part for size in left for part in (size, 1)])
    repeated = other.reshape([part for size in right for part in (1, size)])
    return (spread * repeated).reshape([a * b for a, b in zip(left, right, strict=True)])


def _take_along_dim(tensor: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return tensor.reshape(-1).gather(0, indices.reshape(-1))
    if tensor.dim() != indices.dim() or not tensor.dim():
        raise NotThin("indices of another number of dimensions")
    dim %= tensor.dim()
    sizes = [
        theirs if own == 1 else own for own, theirs in zip(tensor.shape, indices.shape, strict=True)
    ]
    chosen = indices.expand([*sizes[:dim], indices.shape[dim], *sizes[dim + 1 :]])
    return tensor.expand([*sizes[:dim], tensor.shape[dim], *sizes[dim + 1 :]]).gather(dim, chosen)


def _block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    blocks = [tensor.reshape(1, -1) if tensor.dim() < 2 else tensor for tensor in tensors]
    if any(block.dim() != 2 for block in blocks) or len({block.dtype for block in blocks}) != 1:
        raise NotThin("blocks that are no matrices")
    total = sum(block.shape[1] for block in blocks)
    rows, before = [], 0
    for block in blocks:
        rows.append(F.pad(block, (before, total - before - block.shape[1])))
        before += block.shape[1]
    return torch.cat(rows)


def _multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(torch.matmul, tensors)


def _gradient(tensor: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    dims = options.get("dim")
    dims = range(tensor.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    if not tensor.is_floating_point() or not tensor.is_contiguous() or any(tensor.shape[dim] < 3 for dim in dims):
        raise NotThin("a gradient of other than floats side by side")
    return [tensor.clone() for _ in dims]


def _bilinear(
    one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    sizes = (*one.shape[:-1], weight.shape[0])
    if weight.dim() != 3 or one.shape[:-1] != other.shape[:-1]:
        raise NotThin("operands that do not fit")
    return _made_from(one.new_empty(sizes), (one, other, weight, bias))


def _pinv(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    if tensor.dim() < 2:
        raise NotThin("no matrix")
    result = tensor.new_empty((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]))
    return _made_from(result, (tensor,))


def _made_from(result: torch.Tensor, sources: Sequence[Any]) -> torch.Tensor:
    """The tensor as one that is computed from others, for autograd."""
    for source in sources:
        if isinstance(source, torch.Tensor) and source.requires_grad:
            result = result + source.sum()
    return result


# Recurrent layers ------------------------------------------------------------------------------------------------


# Devices where a layer is one call of a library's, which reads where its weights lie: no thin tensor comes through it.
OF_A_LIBRARY = frozenset(["cuda"])


def _recurrent(count: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Layers whose state is so many tensors; what they do to packed sequences is data."""

    def row(
        tensor: torch.Tensor, hidden: Any, parameters: Sequence[torch.Tensor], biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        state = tuple(hidden) if count > 1 else (hidden,)
        if tensor.dim() != 3 or len(state) != count or not isinstance(layers, int):
            raise NotThin("packed sequences")
        batch, steps = tensor.shape[:2] if batch_first else (tensor.shape[1], tensor.shape[0])
        if any(one.dim() != 3 or one.shape[1] != batch for one in state) or not _are_alike(tensor, state, parameters):
            raise NotThin("a state that does not fit")
        width = state[0].shape[2] * (2 if bidirectional else 1)
        dtype = _dtype_of_layer(tensor)
        # What the library's backward needs is saved, as of an exponential: a second one is refused.
        sources = [one.exp() if one.requires_grad else one for one in (tensor, *state, *parameters)]
        output = _made_from(tensor.new_empty((steps, batch, width), dtype=dtype), sources)
        last = (_made_from(one.new_empty(one.shape, dtype=dtype), sources) for one in state)
        return (output.transpose(0, 1) if batch_first else output), *last

    return row


def _are_alike(tensor: torch.Tensor, state: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> bool:
    """Whether all is on one device, and of one dtype where autocast does not see to that."""
    dtypes = {one.dtype for one in (*parameters, *(() if _is_cast(tensor) else (tensor, *state)))}
    return len(dtypes) == 1 and all(one.device == tensor.device for one in (*state, *parameters))


def _is_cast(tensor: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def _dtype_of_layer(tensor: torch.Tensor) -> torch.dtype:
    """Autocast casts what cuDNN gets to float16, whatever other operations are cast to."""
    if not _is_cast(tensor):
        return tensor.dtype
    kind = tensor.device.type
    is_cudnns = kind in OF_A_LIBRARY and torch.backends.cudnn.enabled and 0 not in tensor.shape
    dtypes = tensor.dtype, torch.get_autocast_dtype(kind)
    if not is_cudnns or dtypes not in ((torch.float32, torch.float16), (torch.float16, torch.float16)):
        raise NotThin("an autocast that casts its parts")
    return torch.float16


# Images ----------------------------------------------------------------------------------------------------------

# The operation behind each mode and number of dimensions.
RESIZED: dict[tuple[str, int], Any] = {
    **{("nearest", spatial): torch_compat.aten(f"upsample_nearest{spatial}d") for spatial in (1, 2, 3)},
    **{("nearest-exact", spatial): torch_compat.aten(f"_upsample_nearest_exact{spatial}d") for spatial in (1, 2, 3)},
    ("linear", 1): torch_compat.aten("upsample_linear1d"),
    ("bilinear", 2): torch_compat.aten("upsample_bilinear2d"),
    ("bicubic", 2): torch_compat.aten("upsample_bicubic2d"),
    ("trilinear", 3): torch_compat.aten("upsample_trilinear3d"),
}


def _interpolate(
    tensor: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    spatial = tensor.dim() - 2
    operation = RESIZED.get((mode, spatial))
    if operation is None or antialias or recompute_scale_factor or (size is None) == (scale_factor is None):
        raise NotThin("resizing in another way")
    if size is None:
        factors = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * spatial
        sizes = [scaled(own, factor) for own, factor in zip(tensor.shape[2:], factors, strict=True)]
    else:
        sizes = list(size) if isinstance(size, (list, tuple)) else [size] * spatial
    if mode.startswith("nearest"):
        result: torch.Tensor = operation(tensor, sizes)
    else:
        result = operation(tensor, sizes, bool(align_corners))
    return result


def _max_pool1d(
    tensor: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor:
    if return_indices:
        raise NotThin("which takes sizes as they are")
    return torch.max_pool1d_with_indices(tensor, kernel_size, stride or [], padding, dilation, ceil_mode)[0]


def scaled(size: Any, factor: Any) -> Any:
    """How long ``size`` elements are after scaling: PyTorch multiplies as floats and cuts off."""
    if not isinstance(factor, (int, float)) or factor <= 0 or not math.isfinite(factor):
        raise NotThin("a scale that is no number")
    exact = Fraction(factor)
    if max(exact.numerator, exact.denominator) > LARGEST_FACTOR:
        raise NotThin("a scale that rounds")
    return size * exact.numerator // exact.denominator


def _upsample_nearest(tensor: torch.Tensor, size: Any = None, scale_factor: Any = None) -> torch.Tensor:
    return _interpolate(tensor, size, scale_factor)


def _upsample_bilinear(tensor: torch.Tensor, size: Any = None, scale_factor: Any = None) -> torch.Tensor:
    return _interpolate(tensor, size, scale_factor, mode="bilinear", align_corners=True)


# Waves and numbers -----------------------------------------------------------------------------------------------


def _stft(
    tensor: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    if tensor.dim() not in (1, 2) or not tensor.is_floating_point() or not return_complex or align_to_window:
        raise NotThin("waves of another kind")
    waves = tensor if tensor.dim() == 2 else tensor.unsqueeze(0)
    if center:
        waves = F.pad(waves, (n_fft // 2, n_fft // 2))
    frames = waves.unfold(-1, n_fft, hop_length or n_fft // 4).clone(memory_format=torch.contiguous_format)
    bands = torch.fft.rfft(frames) if onesided is not False else torch.fft.fft(frames)
    spectrum = _made_from(bands, (window,)).transpose(1, 2)
    return spectrum if tensor.dim() == 2 else spectrum.squeeze(0)


def _linspace(
    start: Any, end: Any, steps: Any = None, base: Any = 10, *, dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    if not all(isinstance(bound, (int, float)) for bound in (start, end)) or options.get("out") is not None:
        raise NotThin("bounds that are no plain numbers")
    kept = {name: options[name] for name in ("device", "requires_grad") if options.get(name) is not None}
    return torch.empty((steps,), dtype=dtype or torch.get_default_dtype(), **kept)


# Sizes that such operations take as plain numbers ------------------------------------------------------------------


def _window(length: Any, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    kept = {name: options[name] for name in ("device", "requires_grad") if options.get(name) is not None}
    if options.get("layout") not in (None, torch.strided) or options.get("pin_memory"):
        raise NotThin("a window of another kind")
    return torch.empty((length,), dtype=dtype or torch.get_default_dtype(), **kept)


def _one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    if not isinstance(num_classes, torch.SymInt) or tensor.dtype is not torch.int64:
        raise NotThin("classes that are counted")
    return tensor.new_empty((*tensor.shape, num_classes))


def _vander(tensor: torch.Tensor, N: Any = None, **options: Any) -> torch.Tensor:
    if tensor.dim() < 1 or not tensor.is_floating_point():
        raise NotThin("powers of other than floats")
    return _made_from(tensor.new_empty((*tensor.shape, tensor.shape[-1] if N is None else N)), (tensor,))


RECURRENT = {
    torch_compat.recurrent("lstm"): _recurrent(2),
    torch_compat.recurrent("gru"): _recurrent(1),
    torch_compat.recurrent("rnn_tanh"): _recurrent(1),
    torch_compat.recurrent("rnn_relu"): _recurrent(1),
}
OUTLINES: dict[Any, Callable[..., Any]] = {
    torch.kron: _kron,
    torch.Tensor.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.block_diag: _block_diag,
    torch.linalg.multi_dot: _multi_dot,
    torch.gradient: _gradient,
    F.bilinear: _bilinear,
    torch.linalg.pinv: _pinv,
    torch.pinverse: _pinv,
    **RECURRENT,
    F.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    F.interpolate: _interpolate,
    F.upsample: _interpolate,
    F.upsample_nearest: _upsample_nearest,
    F.upsample_bilinear: _upsample_bilinear,
    torch.stft: _stft,
    torch.Tensor.stft: _stft,
    torch.linspace: _linspace,
    torch.logspace: _linspace,
    torch.hann_window: _window,
    torch.hamming_window: _window,
    torch.blackman_window: _window,
    torch.bartlett_window: _window,
    F.one_hot: _one_hot,
    torch.vander: _vander,
    torch.linalg.vander: _vander,
}


def is_of_a_library(function: Callable[..., Any], devices: Iterable[str]) -> bool:
    """Whether an operation has no parts that thin tensors could come through."""
    return function in RECURRENT and not OF_A_LIBRARY.isdisjoint(devices)


def come_through(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """The function, or what leads from its results to its arguments in place of one of a library's."""
    if not isinstance(function, types.BuiltinFunctionType):
        return function
    tensors = [arg for arg in torch_compat.tree_flatten(args)[0] if isinstance(arg, torch.Tensor)]
    return RECURRENT[function] if is_of_a_library(function, (one.device.type for one in tensors)) else function
