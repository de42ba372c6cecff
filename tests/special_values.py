"""Every operation that kernels compute, called on the numbers where functions go wrong, and compared with eager.

The operations are those of the table of lowerings; how each is called follows from its schema, so that a new row of
the table is tried without being remembered. Results have eager's signs of zero, infinities and NaNs; other numbers
may differ as far as eager's do from those of double precision.
"""

import math
from dataclasses import dataclass

import torch

from bothways.grad.tracing.joint import trace_joint
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir.lowerings import LOWERINGS
from bothways.lower.schedule.steps import lower

INF, NAN = math.inf, math.nan
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
# Where exponentials and hyperbolic functions overflow or vanish, in single and in double precision.
EDGES = (20, 88.5, 89.2, 104, 709.5, 710.2, 745.2, 11.05, 11.2)
ORDINARY = (0.1, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 6, math.pi / 2, 2**24 + 1, 2**31, 2**53, 2**63, 2**64)
WHOLE = (0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 65, 100, 2**31 - 1, 2**31, 2**53 + 1)
# Numbers of the program beside the tensors.
FLOAT_NUMBERS = (0, 0.0, -0.0, 1, -1, 2, 3, -2, 0.5, -0.5, 1.5, 0.1, 2.5, -3.7, 1e-40, INF, -INF, NAN)
WHOLE_NUMBERS = (0, 1, -1, 2, 3, -3, 7, True)


def numbers(dtype):
    """The numbers that are tried."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        signed = [sign * value for value in WHOLE for sign in (1, -1)]
        ends = [limits.min, limits.min + 1, limits.max - 1, limits.max]
        return torch.tensor(sorted({v for v in [*signed, *ends] if limits.min <= v <= limits.max}), dtype=dtype)
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal * limits.eps
    sizes = [0.0, tiny, 3 * tiny, limits.smallest_normal, limits.eps, 1 + limits.eps, limits.max, limits.max / 2]
    sizes += [limits.max**0.5 * 1.01, *ORDINARY, *EDGES, INF]
    signed = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=torch.float64).to(dtype)
    kept = dict.fromkeys((value, math.copysign(1, value)) for value in signed.tolist())
    return torch.tensor([value for value, _ in kept] + [NAN], dtype=torch.float64).to(dtype)


def few(dtype):
    """Fewer of them, for functions of three numbers."""
    found = numbers(dtype)
    if not dtype.is_floating_point:
        return found[:: max(1, len(found) // 8)]
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal * limits.eps
    wanted = [0.0, -0.0, tiny, 0.5, -1, 2.5, -20, limits.max, -limits.max, INF, -INF, NAN]
    return torch.tensor(wanted, dtype=torch.float64).to(dtype)


def tensors_of(dtypes, lowest=True, most=2):
    """Tensors in which all combinations of the numbers of some dtypes meet, fewer of them where more than ``most`` do.
    """
    some = [(numbers if len(dtypes) <= most else few)(dtype) for dtype in dtypes]
    if not lowest:
        some = [own[own != torch.iinfo(own.dtype).min] if own.dtype in INTEGERS else own for own in some]
    places = torch.meshgrid(*(torch.arange(len(own)) for own in some), indexing="ij")
    return [own[place.flatten()] for own, place in zip(some, places, strict=True)]


# Calls -----------------------------------------------------------------------------------------------------------

aten = torch.ops.aten
# What arguments other than tensors are, by name; by type otherwise. The first choice goes with all of the others'.
BY_NAME = {
    "reduction": [0], "rounding_mode": ["floor", "trunc", None], "approximate": ["none", "tanh"], "eps": [None, 0.1],
    "is_result": [False, True], "self_is_result": [False], "train": [True], "beta": [0.7, 1, 0], "delta": [0.7],
    "scale": [1.5], "memory_format": [None], "dtype": [None], "output_dtype": [None], "half_to_float": [False],
    "keepdim": [False], "correction": [None, 0], "p": [2, 0, 1, 3, INF, -INF], "ord": [2, 0, 1, 3, INF, -INF],
    "threshold": [0.1, 0.5, 20], "non_blocking": [False], "alpha": [1, 2, 0.3], "lambd": [0.1, 0.5, 0], "diagonal": [0],
}  # fmt: skip
ALONG = ("dim", "dims", "diagonal")
MASKS = ("condition", "mask")
SAME = (aten.lift_fresh.default, aten._reshape_alias.default, aten._unsafe_view.default)
# What ends the process in eager: the lowest integer by -1, and integers by a number that becomes 0.
DIVIDE = ("div", "remainder", "fmod", "floor_divide")
ONLY_FLOATING = ("smooth_l1_loss_backward",)
# PyTorch says that powers of truths are integers, and gives truths; what was foretold counts.
FORETOLD_WRONGLY = ("pow", "_foreach_pow")
# A difference of two numbers that are equal but for rounding, which decides the sign; so do means that are zero.
EITHER_ZERO = ("logaddexp2",)


@dataclass(frozen=True)
class Slot:
    """Where a tensor goes: of the dtype that is tried, or of truths; in a list, or by itself."""

    truths: bool = False
    listed: bool = False

    def __repr__(self):
        return "[_]" if self.listed else "_"


@dataclass
class Call:
    """An operation with everything but its tensors."""

    target: object
    arguments: tuple
    keywords: dict
    rows: bool = False  # whether it goes along a dimension

    @property
    def slots(self):
        return [value for value in [*self.arguments, *self.keywords.values()] if isinstance(value, Slot)]

    @property
    def shares_memory(self):
        """Whether it gives views, which are no results of a graph."""
        return any(result.alias_info is not None for result in self.target._schema.returns) or self.target in SAME

    def __call__(self, *tensors):
        given = iter(tensors)
        arguments = [_filled(value, given) for value in self.arguments]
        result = self.target(*arguments, **{key: _filled(value, given) for key, value in self.keywords.items()})
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        return [value.clone() for value in results] if self.shares_memory else results

    def __str__(self):
        own = [*map(repr, self.arguments), *(f"{key}={value!r}" for key, value in self.keywords.items())]
        return f"{self.target}({', '.join(own)})"


def _filled(value, given):
    if not isinstance(value, Slot):
        return value
    return [next(given)] if value.listed else next(given)


@dataclass
class OwnCall(Call):
    """A call that is written out, since its arguments depend on each other."""

    function: object = None
    count: int = 1

    @property
    def slots(self):
        return [Slot()] * self.count

    def __call__(self, *tensors):
        return [self.function(*tensors)[0]]  # the rest is what a backward reads


def _own(target, function, count=1):
    return OwnCall(target, (), {}, True, function, count)


def _layer_norm_backward(grad, x):
    _, mean, rstd = aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)
    return aten.native_layer_norm_backward(grad, x, [x.shape[1]], mean, rstd, None, None, [True, False, False])


def _group_norm_backward(grad, x):
    size = (*x.shape, 1, 1, 2)
    _, mean, rstd = aten.native_group_norm(x, None, None, *size, 1e-5)
    return aten.native_group_norm_backward(grad, x, mean, rstd, None, *size, [True, False, False])


def _batch_norm_backward(grad, x):
    grad, x = grad.t().contiguous(), x.t().contiguous()
    _, mean, rstd = aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    return aten.native_batch_norm_backward(
        grad, x, None, None, None, mean, rstd, True, 1e-5, [True, False, False]
    )


WRITTEN_OUT = {
    call.target: [call]
    for call in (
        _own(aten.native_layer_norm.default, lambda x: aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)),
        _own(aten.native_layer_norm_backward.default, _layer_norm_backward, 2),
        _own(aten.native_group_norm.default,
             lambda x: aten.native_group_norm(x, None, None, *x.shape, 1, 2, 1e-5)),
        _own(aten.native_batch_norm.default,
             lambda x: aten.native_batch_norm(x.t().contiguous(), None, None, None, None, True, 0.1, 1e-5)),
        _own(aten.native_batch_norm_backward.default, _batch_norm_backward, 2),
        _own(aten._softmax_backward_data.default,
             lambda grad, x: [aten._softmax_backward_data(grad, x, 1, x.dtype)], 2),
        _own(aten._log_softmax_backward_data.default,
             lambda grad, x: [aten._log_softmax_backward_data(grad, x, 1, x.dtype)], 2),
        _own(aten.glu_backward.default, lambda grad, x: [aten.glu_backward(grad[:, :2].contiguous(), x, 1)], 2),
        _own(aten.masked_fill.Tensor, lambda x: [aten.masked_fill(x, x > 0, x[0, 0])]),
        _own(aten.index_put.default, lambda x: [aten.index_put(x, [x > 0], x[0, 0])]),
        _own(aten.index_add.default, lambda x: [aten.index_add(x, 0, torch.arange(len(x)) // 2, x)]),
        _own(aten.scatter_add.default, lambda x: [aten.scatter_add(x, 0, torch.zeros(x.shape, dtype=torch.int64), x)]),
        _own(aten.norm.ScalarOpt_dtype, lambda x: [aten.norm(x, 2, dtype=x.dtype)]),
        _own(aten.norm.ScalarOpt_dim_dtype, lambda x: [aten.norm(x, 2, [1], False, dtype=x.dtype)]),
    )
}  # fmt: skip

# Operations that are not tried, and why.
NOT_TRIED = {
    "moves elements and computes nothing": (
        "_reshape_alias _unsafe_index _unsafe_view channel_shuffle constant_pad_nd diagonal embedding expand "
        "expand_copy gather index index_select permute permute_copy pixel_shuffle pixel_unshuffle repeat reshape roll "
        "select select_backward select_copy select_scatter slice_backward split split_with_sizes transpose "
        "transpose_copy unfold unsafe_split unsafe_split_with_sizes view view_copy upsample_nearest1d "
        "upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d"
    ),
    "reads no tensor": "arange eye full linspace ones zeros new_full new_ones new_zeros scalar_tensor",
    "adds up and averages blocks, as sum and mean do": (
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool2d avg_pool2d_backward upsample_nearest1d_backward "
        "upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward "
        "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward"
    ),
    "reads at places; test_native_opinfo.py tries it on special values": (
        "max_pool2d_with_indices max_pool2d_with_indices_backward nll_loss_forward nll_loss_backward "
        "nll_loss2d_forward nll_loss2d_backward"
    ),
    "another way to call an operation that is tried": (
        "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training fill "
        "_foreach_add _foreach_mul _foreach_div native_group_norm_backward"
    ),
    "random": "bernoulli native_dropout",
    "for transposed ones alone; test_native_convolutions.py tries them on infinities and NaNs": "convolution",
    "only for GPUs": "mm _fused_rms_norm _fused_rms_norm_backward",
}


def calls_of(target, dtype):
    """The ways an operation is called; none when its schema has something that tells nothing about numbers."""
    name = name_of(target)
    if dtype == torch.bool and name in FORETOLD_WRONGLY:
        return []
    if name in NOT_TRIED["random"].split() or (name in ONLY_FLOATING and not dtype.is_floating_point):
        return []
    if target in WRITTEN_OUT:
        return WRITTEN_OUT[target]
    choices = [_choices(argument, dtype) for argument in target._schema.arguments]
    if any(choice is None for choice in choices):
        return []
    first = [choice[0] for choice in choices]
    varied = [
        [*first[:place], value, *first[place + 1 :]]
        for place, choice in enumerate(choices)
        for value in (choice if len(choice) > 1 else [])
    ]
    found = []
    for values in varied or [first]:
        named = list(zip(target._schema.arguments, values, strict=True))
        arguments = tuple(value for argument, value in named if not argument.kwarg_only)
        keywords = {argument.name: value for argument, value in named if argument.kwarg_only}
        found.append(Call(target, arguments, keywords, any(argument.name in ALONG for argument, _ in named)))
    return [call for call in found if 0 < len(call.slots) <= 3]


def name_of(target):
    return target._schema.name.removeprefix("aten::")


def _choices(argument, dtype):
    kind = str(argument.type)
    if argument.name in BY_NAME and "Tensor" not in kind:
        return BY_NAME[argument.name]
    if argument.name in ALONG:
        return [[1]] if "List" in kind else [1]
    tried = FLOAT_NUMBERS if dtype.is_floating_point else WHOLE_NUMBERS
    match kind:
        case "Tensor":
            return [Slot(truths=argument.name in MASKS)]
        case "List[Tensor]":
            return [Slot(listed=True)]
        case "Optional[Tensor]":
            return [Slot()] if argument.name in ("min", "max") else [None]
        case "number" | "Optional[number]" | "Optional[float]":
            return list(tried)
        case "float":
            return [0.5]
        case "List[number]":
            return [[value] for value in tried]
        case "Optional[int]" | "Optional[bool]" | "Optional[Device]" | "Optional[Generator]":
            return [None]
    return [argument.default_value] if argument.has_default_value() else None


def inputs_of(call, dtype, most=2):
    """Tensors to call it on: combinations of numbers, or rows of two such numbers and two ordinary ones.

    All numbers meet where at most so many meet.
    """
    dtypes = [torch.bool if slot.truths else dtype for slot in call.slots]
    if not call.rows:
        return tensors_of(dtypes, name_of(call.target) not in DIVIDE, most)
    made = []
    for slot, own in enumerate(dtypes):
        some = numbers(own) if most >= 2 else few(own)
        first, second = torch.meshgrid(some, some, indexing="ij")
        if isinstance(call, OwnCall):
            first, second = (_moderate(part) for part in (first, second))
        parts = [first.flatten(), second.flatten(), 2 * second.flatten(), torch.ones_like(first).flatten()]
        made.append(torch.stack(parts if slot % 2 == 0 else parts[::-1], 1))
    return made


def _moderate(tensor):
    """Without numbers whose squares overflow: where that ends depends on the order in which things are added up."""
    if not tensor.is_floating_point():
        return tensor
    limit = torch.finfo(tensor.dtype).max ** 0.4
    return torch.where(tensor.abs().nan_to_num(0, 0) > limit, torch.ones_like(tensor), tensor)


# Running ------------------------------------------------------------------------------------------------------------

TOGETHER = 40  # calls that are built at once


def attempt(call, tensors):
    """What eager gives; None when it refuses."""
    try:
        return call(*tensors)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, ZeroDivisionError, IndexError):
        return None


def tried(dtype, targets=LOWERINGS, most=2):
    """The calls that eager takes, with their tensors, by the tensors they share."""
    found = {}
    for target in targets:
        for call in calls_of(target, dtype):
            for within in (False, True):
                tensors = inputs_of(call, dtype, most)
                if within and not all(tensor.is_floating_point() for tensor in tensors):
                    break
                if within:  # for probabilities
                    tensors = [tensor.abs().clamp(max=1).nan_to_num(0.5) for tensor in tensors]
                expected = attempt(call, tensors)
                if expected is not None:
                    key = (tuple(call.slots), call.rows, name_of(target) in DIVIDE, type(call), within)
                    found.setdefault(key, (tensors, []))[1].append((call, expected))
                    break
    return found


def differences(dtype, targets=LOWERINGS, dialect=None, most=2):
    """What kernels of a dialect, of C as a rule, compute otherwise than eager, in words; and the number of results."""
    found, count = [], 0
    for tensors, calls in tried(dtype, targets, most).values():
        for start in range(0, len(calls), TOGETHER):
            some = calls[start : start + TOGETHER]
            results = iter(kernels_run([call for call, _ in some], tensors, dialect))
            for call, expected in some:
                for index, eager in enumerate(expected):
                    count += 1
                    found += compared(call, tensors, index, next(results), eager)
    return found, count


def kernels_run(calls, tensors, dialect=None):
    """The results of calls on the same tensors, computed by kernels."""
    joint = trace_joint(lambda *given: [result for call in calls for result in call(*given)], tensors, False)
    lowered = lower(joint.recorder.module(tuple(joint.results), "Special"), tensors)
    with torch.no_grad():
        results = list(KernelProgram(lowered, dialect=dialect or C()).run(*tensors))
    return [results[output.index] for output in joint.outputs]


def compared(call, tensors, index, own, eager):
    """A description of the elements of a result that differ from eager's, in a list; nothing when none does."""
    true = None
    if eager.dtype.is_floating_point and eager.dtype != torch.float64:
        wide = attempt(call, [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors])
        true = None if wide is None else wide[index].double()
    signs = not isinstance(call, OwnCall) and name_of(call.target) not in EITHER_ZERO
    differ = where_different(own, eager, true, tensors, signs)
    by_row = eager.dim() and all(tensor.shape[0] == eager.shape[0] for tensor in tensors)
    rows = differ.reshape(len(differ), -1).any(1).nonzero()[:200, 0].tolist() if by_row else ()
    for place in rows:
        here = slice(place, place + 1)
        few = [tensor[here] for tensor in tensors]
        for other in by_itself(call, few):
            differ[here] &= where_different(own[here], other[index], None if true is None else true[here], few, signs)
    if not differ.any():
        return []
    places = differ.flatten().nonzero()[:4, 0]
    shown = [tensor.flatten()[places].tolist() for tensor in tensors if tensor.shape == eager.shape]
    shown += [own.flatten()[places].tolist(), eager.flatten()[places].tolist()]
    return [f"{call} in {int(differ.sum())} places: inputs, own, eager {shown}"]


def by_itself(call, one):
    """What eager gives for one element: where no vector is filled with it, and in the midst of many.

    It may have one function for vectors and another for the end of a loop.
    """
    many = [tensor.repeat(64, *[1] * (tensor.dim() - 1)) for tensor in one]
    return [[result[:1] for result in found] for found in (attempt(call, one), attempt(call, many)) if found]


def _largest(tensors, eager):
    """The largest of the numbers an element is computed from."""
    found = torch.ones_like(eager, dtype=torch.float64)
    for tensor in tensors:
        if tensor.is_floating_point() and eager.dim() and tensor.shape[0] == eager.shape[0]:
            sizes = tensor.double().abs().nan_to_num(1.0, 1.0)
            sizes = sizes.amax(1) if sizes.dim() > 1 else sizes
            found = torch.maximum(found, sizes.reshape(-1, *[1] * (eager.dim() - 1)))
    return found


def where_different(own, eager, true, tensors, signs=True):
    """Places where kernels give another number than eager that no rounding explains."""
    if own.dtype != eager.dtype or own.shape != eager.shape:
        return torch.ones(eager.shape, dtype=torch.bool)
    if not eager.dtype.is_floating_point:
        return own != eager
    limits = torch.finfo(eager.dtype)
    wide, given = own.double(), eager.double()
    special = given.isnan() | given.isinf() | wide.isnan() | wide.isinf()
    rows = any(tensor.dim() > 1 for tensor in tensors)  # where what is added up may cancel
    special |= (given == 0) & (wide == 0) if rows else given == 0
    same = ((own == eager) & ((own.signbit() == eager.signbit()) | (not signs))) | (own.isnan() & eager.isnan())
    # Not quite zero where eager has zero, or the other way around, is rounding; the sign of a zero is not.
    small = 2 * limits.smallest_normal
    near_zero = (given.abs() <= small) & (wide.abs() <= small) & ((own.signbit() == eager.signbit()) | (own != 0))
    units = (16 if eager.dtype in (torch.float32, torch.float64) else 1) * (1 if signs else 4)
    scale = given.abs()
    if eager.dtype == torch.float64 or rows:  # as exact as the numbers that come in
        scale = torch.maximum(scale, _largest(tensors, eager))
    close = (wide - given).abs() <= units * limits.eps * scale + units * limits.smallest_normal * limits.eps
    if true is not None:
        close |= (wide - true).abs() <= 4 * (given - true).abs()
    return ~(same | near_zero | (close & ~special))
