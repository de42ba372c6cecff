"""Half precision and truths inside kernels are what eager keeps in memory: rounded between operations, and 0 or 1.

Inside one operation ATen computes half precision in float, and so do kernels. What stands between two operations is
rounded, so whatever looks at it (a comparison, a conversion, a question) sees eager's numbers, and so do gradients.
"""

import pytest
import torch
import torch.nn.functional as F

import bothways

HALVES = [torch.float16, torch.bfloat16]
BACKENDS = ["eager", "aot_eager", "native"]


def name(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """However small the tensors are."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)


def same(own, eager):
    """Bit for bit, but for what a NaN is made of."""
    assert own.dtype == eager.dtype
    torch.testing.assert_close(own, eager, rtol=0, atol=0, equal_nan=True)
    if own.dtype.is_floating_point:
        real = ~eager.isnan()
        assert torch.equal(own.signbit()[real], eager.signbit()[real])


def check(function, *inputs, backend="native"):
    """Twice on the inputs, and once on others: a program is for a kind of tensor, not for its numbers."""
    compiled = bothways.compile(function, backend=backend)
    others = [tensor.flip(0) for tensor in inputs]
    for given in (inputs, inputs, others):
        for own, eager in zip(compiled(*given), function(*given), strict=True):
            same(own, eager)


def large(dtype, count=320):
    torch.manual_seed(0)
    return (torch.randn(count) * 100).to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_overflow_is_seen_by_whatever_looks(dtype, backend):
    x = large(dtype)
    big = 1000.0 if dtype == torch.float16 else 1e37

    def look(x):
        y = x * big
        return (
            y.isinf(), y.isfinite(), (y - y).isnan(), y.float().isfinite(), torch.isposinf(y), y == y + 1,
            torch.where(y.abs() == float("inf"), 0, x), y.signbit(), y.double(), y.nan_to_num(), y.clamp(-10, 10),
        )  # fmt: skip

    check(look, x, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_rounding_is_seen_by_whatever_looks(dtype, backend):
    x, y = large(dtype), large(dtype).flip(0)

    def look(x, y):
        z = x * 0.333 + y
        return (
            z.floor(), z.ceil(), z.round(), z.trunc(), z.frac(), z.sign(), z.int(), z.long(), z.float(), z.double(),
            z.to(torch.bfloat16), z.to(torch.float16), z == z.float(), z > x, z.bool(), z - z.float(), z % 3,
            z // 3, z.argmax(), z.argmin(), z.max(), z.amin(), z.view(4, 80).argmax(1), (z * 7).to(torch.int8),
            torch.where(z > 0, z, 0), z.float().sum(dtype=torch.float64), (z.float() != z).any(),
        )  # fmt: skip

    check(look, x, y, backend=backend)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_chains_are_rounded_after_each_operation(dtype):
    x, y = large(dtype), large(dtype).flip(0)
    check(lambda x, y: (((x * y + 1) * 0.1 - y) * x / 3 + y * 2.7, (x + 0.1) * 0.1 - 0.7, x.square() - x * x), x, y)
    check(lambda x, y: (torch.add(x, y, alpha=0.3), torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=0.1)), x, y)
    check(lambda x, y: (x.view(10, 32).sum(1), x.view(10, 32).mean(0) * y[:32], (x * y).sum().float()), x, y)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_numbers_of_the_program_are_rounded_where_eager_rounds_them(dtype):
    x = torch.linspace(-2, 2, 320).to(dtype)
    check(lambda x: (x + 0.1, x - 0.1, 0.1 - x, x * 0.1, x / 0.1, x // 0.1, x % 0.1), x)
    check(lambda x: (x == 0.1, x > 0.1, x.clamp(-0.1, 0.1), x.masked_fill(x > 1, 0.1), torch.where(x > 0, x, 0.1)), x)
    check(lambda x: (torch.full_like(x, 0.1) + x, F.threshold(x, 0.1, 0.7), F.hardshrink(x, 0.1)), x)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_gradients_in_half_precision_are_eagers(dtype, backend):
    def function(x, y):
        z = x * y + 0.1
        return (z * z - y).relu() * 0.7 + F.hardtanh(z) * x

    grad = large(dtype)
    found = []
    for run in (function, bothways.compile(function, backend=backend)):
        inputs = [(large(dtype) / 100).requires_grad_(), (large(dtype).flip(0) / 50).requires_grad_()]
        run(*inputs).backward(grad)
        found.append([tensor.grad for tensor in inputs])
    for own, eager in zip(*found, strict=True):
        same(own, eager)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_number_comes_and_goes_unchanged(dtype):
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    check(lambda x: (x.float(), x * 1, (x.float() * 1).to(x.dtype), -x), x)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_numbers_between_two_others_are_rounded_to_the_even_one(dtype):
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float().view(torch.int32)
    steps = (-1, 0, 1, 0x7FF, 0x800, 0x801, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)
    x = torch.cat([(bits + step).view(torch.float32) for step in steps])
    x = torch.cat([x, x * 2.0**-14, x * 2.0**-20])
    check(lambda x: ((x * 1).to(dtype), (x * 1).to(dtype).float(), (x * 1).to(dtype) * 2), x)


# Truths -------------------------------------------------------------------------------------------------------------


def bytes_of_all_kinds():
    return torch.tensor([0, 1, 2, 3, 4, 127, 128, 254, 255, 0] * 7, dtype=torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_truth_may_be_any_byte(backend):
    def read(x):
        t = x.view(torch.bool)
        return (
            t.int(), t.float() * 2, t.sum(), t.any(), t.all(), ~t, t & True, t ^ t.flip(0), t | ~t, t == True,  # noqa: E712
            torch.where(t, 1.0, 2.0), torch.zeros(t.shape).masked_fill(t, 3), t.to(torch.uint8), t * 5, t + t, t > 0,
            t.view(7, 10).sum(1), t.view(7, 10).amax(0), t.int().cumsum(0), t.logical_not(),
            t.clone().view(torch.uint8),
            t.count_nonzero(), t.double().mean(), t.view(7, 10).t().contiguous().int(), t[::2].int(),
        )  # fmt: skip

    check(read, bytes_of_all_kinds(), backend=backend)


def test_truths_that_come_in_as_bytes():
    def read(t, x):
        return t.int(), torch.where(t, x, -x), x * t, t.sum(), x.masked_fill(t, 0), (t & (x > 0)).int(), t.cumsum(0)

    x = torch.randn(70)
    numpy = pytest.importorskip("numpy")
    given = torch.from_numpy(bytes_of_all_kinds().numpy().view(numpy.bool_))
    check(read, given, x)
    check(read, torch.frombuffer(bytearray(bytes_of_all_kinds().tolist()), dtype=torch.bool), x)


def test_a_view_in_the_midst_of_a_graph():
    def function(x):
        t = (x * 3).view(torch.bool)
        return torch.where(t, 1, 2), t.int() + (x.view(torch.bool) & t).int(), t.view(7, 10).any(1), t.sum()

    check(function, bytes_of_all_kinds())


def test_other_reinterpretations_see_what_is_stored():
    def function(x):
        y = x * 0.1 + 1
        return y.view(torch.int16), (y.view(torch.int16) & 0x7FFF).view(x.dtype) * 2

    for dtype in HALVES:
        check(function, large(dtype))
