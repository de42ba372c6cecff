"""Numbers read from data as numbers of the graph, where ``config.numbers_from_data`` asks for them."""

import warnings

import pytest
import torch
from sizing import BACKENDS, agree, agree_once

import bothways
from bothways import config

everywhere = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _wanted():
    with config.patch(numbers_from_data=True):
        yield


def x(*shape):
    return torch.randn(*(shape or (10, 4)), requires_grad=True)


def calls(numbers, *shape):
    return [(x(*shape), torch.tensor(number)) for number in numbers]


@everywhere
def test_arithmetic_with_whole_numbers(backend):
    def program(x, t):
        n = t.item()
        return x * n + (n * 3 - 1), n, n // 2, n % 3, n * n - 1, -n, max(n, 4), min(n, 4, 6)

    agree(program, calls((3, 5, -7, 0, 1)), backend, programs=1)


@everywhere
def test_arithmetic_with_fractions(backend):
    def program(x, t):
        f = t.item()
        return x * f + f, f * 2 - 1.0, -f, torch.full((3,), f)

    agree(program, calls((0.5, -2.25, 1e-3, 0.0)), backend, programs=1)


@everywhere
def test_int_and_float_of_tensors(backend):
    def program(x, t):
        return x + int(t), int(t) + 1, float(t) * 2.0

    agree(program, calls((3.7, -2.2, 5.0)), backend, programs=1)
    agree(program, calls((3, -2, 5)), backend, programs=1)


@everywhere
def test_sizes_of_new_tensors(backend):
    def program(x, t):
        n = t.item()
        made = torch.zeros(n, 4) + x[0]
        return made.sum(1), made.t().contiguous(), torch.arange(n) * 2, torch.ones(max(n, 5)), made.shape[0] + 1

    agree(program, calls((3, 5, 1, 0)), backend, programs=1)


@everywhere
def test_slices_and_indices(backend):
    def program(x, t):
        n = t.item()
        return x[:n] * 2, x[n] + 1, x[n:], x.select(0, n)

    agree(program, calls((3, 5, 0, -1, 9)), backend, programs=1)


@everywhere
def test_lists_of_numbers_split_a_tensor(backend):
    def program(x, t):
        first, second = t.tolist()
        return (*torch.split(x, [first, second]), [[1, *row] for row in t.reshape(1, 2).tolist()])

    agree(program, [(x(), torch.tensor(sizes)) for sizes in ([7, 3], [4, 6], [10, 0])], backend, programs=1)


@everywhere
def test_three_numbers_that_make_up_a_size(backend):
    def program(x, t):
        return torch.ops.aten.split_with_sizes(x, t.tolist())

    agree(program, [(x(), torch.tensor(sizes)) for sizes in ([2, 5, 3], [4, 4, 2], [0, 5, 5])], backend, programs=1)


@everywhere
def test_a_view_by_a_number(backend):
    agree(lambda x, t: x.view(t.item(), -1).sum(0), calls((3, 4, 1), 12), backend, programs=1)


@everywhere
def test_tensors_made_of_numbers(backend):
    def program(x, t):
        n = t.item()
        return torch.tensor([n]), torch.tensor([[n], [2]]) + x[0, 0], torch.tensor(n), torch.tensor((n, 1.5))

    agree(program, calls((3, 5, -1)), backend, programs=1)
    agree(program, calls((0.5, 2.5)), backend, programs=1)


@everywhere
def test_tensors_made_of_tensors(backend):
    def program(x, t):
        first = torch.tensor([x[0, 0].detach(), 2.0, x.detach().sum()])
        whole = torch.tensor([[t], [t + 1]]), torch.tensor([t], dtype=torch.int32)
        return first * x.sum(), torch.tensor((t, 1.5)), *whole

    with config.patch(numbers_from_data=False):
        agree(program, calls((3, 5, -1)), backend, programs=1)


@everywhere
def test_numbers_of_computed_tensors(backend):
    def program(x, t):
        y = x.relu().sum(0)
        n = (t * 2).sum().item()
        z = y * n
        m = (t + n).item()
        return z * m, n + m

    agree(program, calls((3, 5, -1)), backend, programs=1)


@everywhere
def test_what_is_checked_raises_as_in_plain_python(backend):
    def program(x, t):
        n = t.item()
        torch._check(n >= 2, lambda: "too small")
        torch._check(n < 8)
        return x[:n] + 1

    compiled = agree(program, calls((3, 5, 7)), backend, programs=1)
    for number in (1, 8):
        with pytest.raises(RuntimeError) as plain:
            program(x(), torch.tensor(number))
        with pytest.raises(RuntimeError) as found:
            compiled(x(), torch.tensor(number))
        assert str(found.value).split("\n")[0] == str(plain.value).split("\n")[0]


@everywhere
def test_sizes_that_are_checked(backend):
    def program(x, t):
        n = t.item()
        torch._check_is_size(n, max=7)
        return x[:n] + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of PyTorch advise against it
        compiled = agree(program, calls((3, 5, 7)), backend, programs=1)
        for number in (-1, 8):
            for function in (program, compiled):
                with pytest.raises(RuntimeError):
                    function(x(), torch.tensor(number))


@everywhere
def test_an_index_out_of_range_raises_as_in_plain_python(backend):
    compiled = agree(lambda x, t: x[t.item()], calls((3, 5)), backend, programs=1)
    with pytest.raises(IndexError):
        compiled(x(), torch.tensor(50))


@everywhere
def test_a_decision_breaks(backend):
    def program(x, t):
        n = t.item()
        if n > 3:
            return x * n
        return x - n

    compiled = bothways.compile(program, backend=backend)
    for args in calls((3, 5, 4, 2)):
        agree_once(program, compiled, args)
    with pytest.raises(bothways.errors.Unsupported, match="tensor_branch"):
        bothways.compile(program, backend=backend, fullgraph=True)(x(), torch.tensor(3))


@pytest.mark.parametrize("use", [lambda n: f"{n}", lambda n: {n: 1}[n], lambda n: [0, 1, 2, 3][n], lambda n: range(n)])
def test_what_needs_the_number_breaks(use):
    def program(x, t):
        return x + 1, use(t.item())

    compiled = bothways.compile(program, backend="eager")
    for args in calls((3, 2, 1)):
        agree_once(program, compiled, args)


def test_a_function_that_changes_its_input_breaks_where_something_is_assumed():
    def program(x, t):
        x.mul_(2)
        return torch.zeros(t.item()) + 1

    compiled = bothways.compile(program, backend="eager")
    for number in (3, 1, 0):
        agree_once(program, compiled, (torch.randn(4), torch.tensor(number)))


@everywhere
def test_a_function_that_changes_its_input_goes_on_with_numbers(backend):
    def program(x, t):
        x.mul_(t.item())
        return x + 1

    agree(program, [(torch.randn(4), torch.tensor(number)) for number in (3, 1, 0)], backend, programs=1)


def test_truth_values_and_complex_numbers_break():
    for value in (True, 1j):
        with pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
            bothways.compile(lambda t: t.item(), backend="eager", fullgraph=True)(torch.tensor(value))


@everywhere
def test_lists_of_whole_numbers_without_the_setting_where_nothing_may_break(backend):
    def program(x, t):
        first, second = t.tolist()
        return torch.split(x, [first, second]), [number * 4 for number in t.tolist()]

    with config.patch(numbers_from_data=False):
        agree(program, [(x(), torch.tensor(sizes)) for sizes in ([7, 3], [4, 6])], backend, programs=1)


def test_without_the_setting_reading_breaks():
    with config.patch(numbers_from_data=False), pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
        bothways.compile(lambda x, t: x + t.item(), backend="eager", fullgraph=True)(x(), torch.tensor(3))


def test_numbers_in_a_checkpoint_and_in_a_custom_function_break():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, t):
            ctx.factor = t.item()
            return x * ctx.factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None

    def program(x, t):
        return torch.utils.checkpoint.checkpoint(lambda x: x * t.item(), x, use_reentrant=False) + Scale.apply(x, t)

    compiled = bothways.compile(program, backend="aot_eager")
    for args in calls((3, 2)):
        agree_once(program, compiled, args)
