"""Kernels compute what eager computes, however tensors are laid out, whatever is in them.

``check`` traces a function with its gradients, runs it as kernels, and compares results, layouts and inputs with
eager's. PyTorch's own samples of every operation are in test_native_opinfo.py.
"""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from native_checking import cases_of, run_cases, unlowered, with_tensors_first

import bothways
from bothways.backends.native import native
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower

INF, NAN = math.inf, math.nan


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def check(function, *args, left=()):
    """``left`` names the ATen operations that kernels leave to ATen."""
    call, inputs = with_tensors_first(function, args)
    cases = cases_of("check", call, inputs)
    for outcome in run_cases(cases):
        assert outcome.wrong == []
        assert sorted(name_of(target) for target in unlowered(outcome.case)) == sorted(left)


def name_of(target):
    return target._schema.name.removeprefix("aten::") if hasattr(target, "_schema") else target.__name__


def check_all(*calls):
    """Many at once, for one build."""
    cases = []
    for function, *args in calls:
        call, inputs = with_tensors_first(function, args)
        cases += cases_of(str(len(cases)), call, inputs)
    assert [(outcome.case.name, outcome.wrong) for outcome in run_cases(cases) if outcome.wrong] == []
    assert [unlowered(case) for case in cases] == [[]] * len(cases)


def compiled(function, *args):
    call, inputs = with_tensors_first(function, args)
    [case] = cases_of("compiled", call, inputs)
    return KernelProgram(lower(case.graph, case.given), dialect=C()).run, case


# Layouts --------------------------------------------------------------------------------------------------------


LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "sliced": lambda: torch.randn(9, 15)[1:9:2, 2:14:2],
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "a column": lambda: torch.randn(4, 6, 3)[..., 1],
    "offset": lambda: torch.randn(40)[7:31].view(4, 6),
    "transposed slice": lambda: torch.randn(8, 8)[:6, 1:5].t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout(layout):
    x, y = LAYOUTS[layout](), torch.randn(4, 6)
    check_all(
        (lambda x, y: (x * y).sin() + 1, x, y),
        (lambda x: x.sum(0), x),
        (lambda x: x.sum(1), x),
        (lambda x: x.softmax(0), x),
        (lambda x: x.softmax(1), x),
        (lambda x: (x * 2).t().reshape(3, 8), x),
        (lambda x, y: torch.cat([x, y + 1], 1), x, y),
        (lambda x: x.exp().flip(0, 1), x),
    )


def test_gradients_are_laid_out_as_eager_has_them():
    x = torch.randn(6, 4).t().detach().requires_grad_()
    check(lambda x: (x * x).tanh(), x)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    check(lambda x: F.silu(x) * 2, image)
    check(lambda x: x.mean((2, 3), keepdim=True) * x, image)


def test_channels_last_stays():
    image = torch.randn(2, 8, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: (x + 1).relu(), image)
    check(lambda x, w, b: F.group_norm(x, 2, w, b), image.requires_grad_(), leaf(8), leaf(8))
    check(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), image, leaf(8), leaf(8))


def test_operands_of_different_layouts():
    check(lambda x, y, z: x * y + z, leaf(4, 6), torch.randn(6, 4).t(), torch.randn(1, 6))


# Sizes ----------------------------------------------------------------------------------------------------------


def test_no_dimensions():
    x = torch.tensor(0.5, requires_grad=True)
    check_all(
        (lambda x: x * 2 + 1, x),
        (lambda x: x.sum(), x),
        (lambda x: x.softmax(0), x),
        (lambda x: x.amax(), x),
        (lambda x, y: x * y, x, leaf(3)),
    )


def test_dimensions_of_one():
    x = leaf(1, 5, 1)
    check_all(
        (lambda x: x.sum((0, 2)), x),
        (lambda x: x.softmax(0), x),
        (lambda x: x.var(0, correction=0), x),
        (lambda x: x.expand(3, 5, 4) * 2, x),
        (lambda x: x.squeeze(0).argmax(0), x),
        (lambda x: F.layer_norm(x, (1,)), x),
    )


def test_nothing_inside():
    empty = torch.randn(0, 3)
    call, inputs = with_tensors_first(lambda x: ((x * 2).sum(0), x + 1, torch.cat([x, x])), (empty,))
    [outcome] = run_cases(cases_of("empty", call, inputs))
    assert outcome.wrong == []


@pytest.mark.parametrize("shape", [(1,), (7,), (17, 33), (3, 1000), (1000, 3), (5, 7, 11, 13), (300, 400)], ids=str)
def test_sizes_that_fit_no_vector(shape):
    x = torch.randn(shape, dtype=torch.float32)
    last = len(shape) - 1
    check_all(
        (lambda x: x.sin() * 2 + x, x),
        (lambda x: x.sum(), x),
        (lambda x: x.amax(last), x),
        (lambda x: x.softmax(0), x),
        (lambda x: (x - x.mean(last, keepdim=True)).square().sum(0), x),
    )


def test_large_ones_use_all_threads():
    x = torch.randn(700, 1500)
    check_all(
        (lambda x: (x * 2).tanh().sum(), x),
        (lambda x: x.exp().sum(0), x),
        (lambda x: x.log_softmax(1), x),
        (lambda x: x.argmax(1), x),
        (lambda x: x.t().softmax(0), x),
    )


# Reductions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_reductions_over_any_axes(rank):
    x = torch.randn((3, 4, 5, 6)[:rank])
    subsets = [axes for size in range(1, rank + 1) for axes in itertools.combinations(range(rank), size)]
    check_all(*[
        (lambda x, axes=axes, keep=keep, op=op: getattr(x, op)(axes, keepdim=keep), x)
        for axes in subsets
        for keep in (False, True)
        for op in ("sum", "mean", "amax")
    ])


def test_softmax_over_any_dimension():
    x = leaf(3, 4, 5)
    check_all(*[(lambda x, dim=dim: (x.softmax(dim), x.log_softmax(dim)), x) for dim in (-3, -2, -1)])


def test_large_sums_stay_accurate():
    x = torch.full((1000, 1000), 0.1)
    check_all((lambda x: x.sum(), x), (lambda x: x.sum(0), x), (lambda x: x.mean(), x), (lambda x: x.norm(), x))
    check(lambda x: x.var(), torch.randn(100000) + 1e4)


def test_where_extremes_are():
    ties = torch.tensor([[1.0, 3, 3, 0], [2, 2, 2, 2], [NAN, 1, NAN, 5], [-INF, -INF, -INF, -INF]])
    check_all(
        (lambda x: x.argmax(1), ties), (lambda x: x.argmin(1), ties), (lambda x: x.argmax(), ties),
        (lambda x: x.max(1), ties), (lambda x: x.min(0), ties), (lambda x: x.argmax(0), ties.to(torch.bfloat16)),
        (lambda x: x.max(0), torch.tensor([[3, 1], [3, 2]])), (lambda x: (x * 3).argmax(1), ties),
    )  # fmt: skip


# Numbers that are special -------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, 7.25, -100.0, 3.0]


def pairs(dtype=torch.float32):
    one, other = torch.meshgrid(torch.tensor(SPECIAL, dtype=dtype), torch.tensor(SPECIAL, dtype=dtype), indexing="ij")
    return one.contiguous(), other.contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nan_and_infinity(dtype):
    x, y = pairs(dtype)
    check_all(*[
        (function, x, y)
        for function in (
            torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.add, torch.mul, torch.div, torch.atan2,
            torch.pow, torch.remainder, torch.fmod, torch.eq, torch.lt, torch.ge, torch.xlogy, torch.logaddexp,
            torch.hypot, torch.copysign, torch.heaviside, torch.logical_and, torch.logical_xor,
        )
    ], *[
        (function, x)
        for function in (
            torch.relu, torch.abs, torch.sign, torch.round, torch.floor, torch.ceil, torch.trunc, torch.sqrt,
            torch.rsqrt, torch.reciprocal, torch.exp, torch.expm1, torch.log, torch.log1p, torch.tanh, torch.sigmoid,
            torch.isnan, torch.isinf, torch.isfinite, torch.signbit, torch.nan_to_num, torch.sin, torch.logit,
            torch.sinc, F.silu, F.softplus, F.elu, F.hardswish, F.hardsigmoid, F.hardtanh, F.relu6,
            F.leaky_relu, F.hardshrink, F.mish, F.logsigmoid, F.softsign,
            lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=0), lambda x: x**2,
            lambda x: x**0.5, lambda x: x**-1, lambda x: 2**x, lambda x: x.clamp(x.flip(0), x),
            lambda x: torch.where(x > 0, x, -x), lambda x: torch.div(x, 2.5, rounding_mode="trunc"),
            lambda x: x.amax(1), lambda x: x.amin(1), lambda x: x.sum(1), lambda x: x.float().prod(1),
            lambda x: x.softmax(1),
            lambda x: x.logsumexp(1), lambda x: x.norm(dim=1), lambda x: x.any(1), lambda x: x.all(1),
        )
    ])  # fmt: skip
    # What ATen rounds in between is left to it.
    check(torch.floor_divide, x, y, left=["floor_divide"] if dtype is torch.bfloat16 else [])


def test_products_of_half_precision_are_left_to_aten():
    check(lambda x: x.prod(1), torch.rand(5, 40).half() + 0.5, left=["prod"])


def test_a_bound_that_is_no_number_is_left_to_aten():
    x, _ = pairs()
    for bounds in ({"max": NAN}, {"min": NAN}, {"min": 0.0, "max": NAN}):
        run, _ = compiled(lambda x, bounds=bounds: x.clamp(**bounds), x)
        torch.testing.assert_close(run(x)[0], x.clamp(**bounds), equal_nan=True, rtol=0, atol=0)


def test_zero_keeps_its_sign():
    x, y = pairs()
    for function in (torch.abs, torch.neg, torch.round, torch.trunc, torch.floor, torch.ceil, torch.sqrt, torch.clone):
        run, case = compiled(function, x)
        own, eager = run(x)[0], function(x)
        known = ~eager.isnan()
        assert torch.equal(torch.signbit(own[known]), torch.signbit(eager[known])), function
    for function in (torch.mul, torch.div, torch.copysign, torch.floor_divide, torch.fmod, torch.remainder):
        run, case = compiled(function, x, y)
        own, eager = run(x, y)[0], function(x, y)
        known = ~eager.isnan()
        assert torch.equal(torch.signbit(own[known]), torch.signbit(eager[known])), function


# Whole numbers ----------------------------------------------------------------------------------------------------

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around(dtype):
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, 0, 1, 2, 3, limits.max // 2 + 1], dtype=dtype)
    calls = [
        lambda x: x + x, lambda x: x * x, lambda x: x - 1, lambda x: -x, lambda x: x * 3 + 7, lambda x: x**2,
        lambda x: x**3, lambda x: x.abs(), lambda x: ~x, lambda x: x & 5, lambda x: x | 8, lambda x: x ^ x.flip(0),
        lambda x: x.sum(), lambda x: x.prod(), lambda x: x.amax(), lambda x: x.sum(dtype=x.dtype),
        lambda x: x // 3, lambda x: x % 5, lambda x: x.fmod(7), lambda x: torch.div(x, 4, rounding_mode="trunc"),
        lambda x: x.clamp(1, 100), lambda x: x > 1, lambda x: x == x.flip(0), lambda x: x.sign(), lambda x: x / 2,
        lambda x: x * 0.5, lambda x: x.to(torch.float32), lambda x: x.bool(), lambda x: x.float().to(torch.int32),
        lambda x: torch.where(x > 2, x, 0), lambda x: x.sqrt(), lambda x: x.maximum(x.flip(0)),
    ]  # fmt: skip
    if dtype != torch.uint8:
        calls += [lambda x: x // -3, lambda x: x % -5]
    check_all(*[(call, x) for call in calls])


def test_booleans():
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check_all(*[
        (call, x, y)
        for call in (
            lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y,
            lambda x, y: ~x, lambda x, y: x.sum(), lambda x, y: x == y, lambda x, y: x < y, lambda x, y: x.any(),
            lambda x, y: x.all(), lambda x, y: x.maximum(y), lambda x, y: x.float() * 2, lambda x, y: x * 2.5,
            lambda x, y: x + 1, lambda x, y: torch.where(x, 1.0, 2.0), lambda x, y: x.logical_not(),
            lambda x, y: x.long() - y.long(),
        )
    ])  # fmt: skip


def test_dtypes_are_promoted_as_in_eager():
    floats, halves, whole = torch.randn(4), torch.randn(4).bfloat16(), torch.tensor([1, 2, 3, 4])
    scalar = torch.tensor(2.5, dtype=torch.float64)
    check_all(*[
        (lambda x, y: (x + y, x * y, x > y, torch.maximum(x, y)), one, other)
        for one, other in itertools.combinations([floats, halves, whole, scalar, whole.int(), floats.half()], 2)
    ])


def test_division_by_zero_is_raised():
    x, zero = torch.tensor([1, 2]), torch.tensor([1, 0])
    for function in (torch.floor_divide, torch.remainder, torch.fmod):
        run, case = compiled(function, x, torch.tensor([1, 1]))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, zero)


# Half precision -----------------------------------------------------------------------------------------------------


def test_half_precision_is_computed_in_float():
    x = torch.full((1000,), 0.1, dtype=torch.bfloat16)
    run, case = compiled(lambda x: (x * x * x).sum(), x)
    exact = (x.double() ** 3).sum()
    assert abs(run(x)[0].double() - exact) <= abs((x * x * x).sum().double() - exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_equal_in_memory_is_equal_in_a_kernel(dtype):
    x = torch.randn(64, 64, dtype=dtype)
    run, case = compiled(lambda x: ((x * 1.7) == (x * 1.7).amax(1, keepdim=True)).sum(1), x)
    assert torch.equal(run(x)[0], case.expected[0])
    check(lambda x: (x * 1.7).amax(1), x.requires_grad_())
    check(lambda x: (x * 1.7).floor() + (x * 1.3).to(torch.int32), x.detach())


def test_casts_round():
    x = torch.randn(100)
    check_all(*[
        (lambda x, dtype=dtype: x.to(dtype).float() * 3, x) for dtype in (torch.bfloat16, torch.float16, torch.float64)
    ])
    check(lambda x: x.to(torch.uint8), torch.tensor([0.0, 1.9, 255.0, -1.0]))


# Kernels ------------------------------------------------------------------------------------------------------------


def test_chains_across_reshapes_and_permutations():
    x = leaf(4, 6, 8)
    check_all(
        (lambda x: (x.sin().reshape(24, 8).t() * 2).exp(), x),
        (lambda x: (x * 2).view(4, 2, 3, 8).permute(0, 2, 1, 3).tanh().reshape(12, 16).sum(1), x),
        (lambda x: (x.softmax(-1).transpose(0, 1) + x.transpose(0, 1)).reshape(6, 32).amax(0), x),
        (lambda x: (x - x.mean((0, 2), keepdim=True)).reshape(-1)[3:17].exp(), x),
    )


def test_several_results_and_views_of_them():
    x = leaf(4, 6)
    check(lambda x: (x.sin(), x.cos().sum(0), (x * 2).t(), x.exp()[1:3]), x)
    check(lambda x: (lambda y: (y, y.sum(), y * 2))(x * 3), x)


def test_a_value_is_read_at_other_places_in_the_same_graph():
    square = torch.randn(64, 64)
    check(lambda x: (lambda y: y[0:64].t() + y)(x * 2), square)
    check(lambda x: (lambda y: y + y[:, 0] + y.flip(0))(x.exp()), square)


def test_joined_tensors():
    x, y = leaf(3, 4), leaf(3, 2)
    check_all(
        (lambda x, y: torch.cat([x.sin(), y * 2, x], 1).sum(1), x, y),
        (lambda x: torch.stack([x, x * 2, x.exp()], 1), x),
        (lambda x: F.pad(x * 2, (1, 2, 0, 1), value=3.0), x),
        (lambda x: F.pad(x, (-1, 2)), x),
        (lambda x: x.roll(1, 0) + x, x),
        (lambda x: x[:, 1:3].exp(), x),
        (lambda x: x[1] * 2, x),
        (lambda x: x.repeat(2, 3), x),
        (lambda x: x.tril() + x.triu(1), x),
        (lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), x, y),
        (lambda x: F.glu(x, 1), x),
    )


def test_running_it_again_gives_the_same():
    x = torch.randn(400, 300)
    run, case = compiled(lambda x: ((x * 2).sum(), x.softmax(1).sum(0), x.exp().mean()), x)
    first = run(x)
    for _ in range(5):
        assert all(torch.equal(one, other) for one, other in zip(first, run(x), strict=True))


def test_what_the_samples_of_pytorch_do_not_reach():
    x, image, mask = leaf(4, 6), leaf(2, 3, 4, 6), torch.tensor([True, False] * 3)
    check_all(
        (lambda x: F.interpolate(x, scale_factor=2) * 2, image),
        (lambda x: F.interpolate(x, scale_factor=(1, 4), mode="nearest-exact"), image),
        (lambda x: F.avg_pool2d(x, 2), image),
        (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), image),
        (lambda x: F.pixel_shuffle(x.reshape(2, 4, 3, 6), 2), image),
        (lambda x: x.clamp(-0.5, 0.5) + x.clamp(max=0.1), x),
        (lambda x: x.square() + x.unbind(1)[2][:, None], x),
        (lambda x: x.split([1, 3, 2], 1)[1] * 2, x),
        (lambda x: x.detach().unfold(1, 3, 2) * 2, x),
        (lambda x: torch.eye(4, 6) * x + torch.ones(4, 6).tril(), x),
        (lambda x: torch.fill(x, x.detach()[0, 0]), x),
        (lambda x, m: torch.where(m, x, 2.0) + torch.where(m, 1.0, x) + torch.where(m, 1, 0), x, mask),
        (lambda x: x.fmod(0.3) + x.remainder(0.7) + 5 % x.detach() + torch.div(x, 0.3, rounding_mode="floor"), x),
        (lambda x: torch.isfinite(x / x.detach().round()), x.detach()),
        (lambda x: torch.linspace(-1, 1, 6) + x, x),
    )


# Operations with effects ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 3)], ids=str)
def test_batch_norm_keeps_statistics(shape):
    args = leaf(*shape), leaf(4), leaf(4), torch.randn(4), torch.rand(4)
    check(lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, True, 0.3), *args)
    check(lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, False), *args)


def test_batch_norm_twice_with_the_same_statistics():
    def twice(x, y, mean, var):
        return F.batch_norm(x, mean, var, None, None, True), F.batch_norm(y, mean, var, None, None, True)

    check(twice, torch.randn(6, 4), torch.randn(8, 4), torch.randn(4), torch.rand(4))


def test_random_numbers_are_eagers_own():
    def drop(x):
        return F.dropout(x * 2, 0.3) + F.dropout(x * 2, 0.3) * torch.native_dropout(x, 0.5, True)[0]

    check(drop, leaf(20, 30), left=["draw_mask"] * 3)


def test_an_index_out_of_range_is_raised():
    weight, fine, wrong = torch.randn(5, 3), torch.tensor([0, 4]), torch.tensor([0, 5])
    for function in (
        lambda w, i: F.embedding(i, w), lambda w, i: w.index_select(0, i), lambda w, i: w[i],
        lambda w, i: w.gather(0, i[:, None]), lambda w, i: F.nll_loss(w.t()[:2], i),
    ):  # fmt: skip
        left = "raise_target_error" if function(weight, fine).dim() == 0 else "raise_as_aten"
        check(function, weight, fine, left=[left])
        run, case = compiled(function, weight, fine)
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(weight, wrong)
        with pytest.raises(type(eager.value), match=str(eager.value)[:20]):
            run(weight, wrong)


def test_probabilities_out_of_range_are_raised():
    run, case = compiled(F.binary_cross_entropy, torch.rand(4), torch.rand(4))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        run(torch.full((4,), 2.0), torch.rand(4))


def test_optimizers_lists():
    def adamw(parameters, gradients, means, squares):
        torch._foreach_mul_(parameters, 0.99)
        torch._foreach_lerp_(means, gradients, 0.1)
        torch._foreach_mul_(squares, 0.99)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [0.1, 0.2, 0.3])
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(parameters, means, roots, -0.1)
        return torch._foreach_maximum(parameters, means)

    lists = [[torch.rand(shape) + 0.1 for shape in ((3,), (4, 5), (2, 3, 4))] for _ in range(4)]
    check(adamw, *lists)


def test_an_error_leaves_the_inputs_as_they_were():
    def step(parameter, weight, index):
        parameter.add_(F.embedding(index, weight).sum())
        weight.mul_(0.5)

    compiled, fine, wrong = bothways.compile(step, backend=native), torch.tensor([0, 4]), torch.tensor([0, 5])
    own, eager = ([torch.ones(3), torch.ones(5, 2)] for _ in range(2))
    compiled(*own, fine)
    step(*eager, fine)
    assert all(map(torch.equal, own, eager))
    with pytest.raises(IndexError):
        compiled(*own, wrong)
    assert all(map(torch.equal, own, eager))


def test_views_that_aten_takes_keep_their_memory():
    x = torch.randn(4, 4)
    check(lambda x: (x * 2).as_strided((4, 4), (1, 4)) + (x * 3).sum(0), x, left=["as_strided"])
    check(lambda x: (lambda y: (y.as_strided((3, 3), (4, 1)) + 1, y.exp() * 2))(x * 2), x, left=["as_strided"])
