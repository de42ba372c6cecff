"""What is written to lies as before, though the operation that makes a new tensor would lay it out in another way."""

import operator

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import facts

KERNELS = {"kernels_for_small_graphs": True}
backends = pytest.mark.parametrize("backend", BACKENDS)
by_name = operator.attrgetter("__name__")


def triangle(x, mask):
    x.t().tril_()
    return x.view(-1) + 1


def filled_where(x, mask):
    x.transpose(0, -1).masked_fill_(mask, 1.5)
    x.view(-1)[1] = -1


def into_a_turned_one(x, mask):
    y = x + 1
    torch.add(x.t(), 1, out=y.t())
    return y, y.reshape(-1), y.chunk(2)[1]


def copied_after(x, mask):
    y = x * 2
    part = y.chunk(2, 0)[-1]
    y.swapaxes(0, 1).triu_()
    return part, y


def with_a_view_behind(x, mask):
    y = x * 2
    y.t().tril_()
    flat = y.reshape(-1)
    flat.add_(1)
    return y, flat


def without_gradients(x, mask):
    with torch.inference_mode():
        y = x + 1
        y.t().tril_()
        return y.reshape(-1), y


def drawn_in_the_image_of_a_turned_one(x, mask):
    """What eager gives without gaps, however the argument lies."""
    slopes = torch.nn.functional.rrelu(x.t(), training=True)
    numbers = torch.poisson(x.abs().t())
    return slopes, numbers, slopes.is_contiguous(), numbers.view(-1)


def shuffled_with_channels_last(x, mask):
    images = (x * 2).view(1, 4, -1, 1).contiguous(memory_format=torch.channels_last)
    shuffled = torch.nn.functional.channel_shuffle(images, 2)
    return shuffled, shuffled.is_contiguous(memory_format=torch.channels_last), shuffled + 1


@backends
@pytest.mark.parametrize(
    "program",
    [
        triangle,
        filled_where,
        into_a_turned_one,
        copied_after,
        with_a_view_behind,
        without_gradients,
        drawn_in_the_image_of_a_turned_one,
        shuffled_with_channels_last,
    ],
    ids=by_name,
)
def test_strides_and_what_shares_memory(program, backend):
    def observe(function, size):
        x = torch.arange(4.0 * size).view(4, size) - 7
        torch.manual_seed(0)
        result = function(x, torch.arange(4) > 1)
        seen = {"result": facts(result), "x": facts(x)}
        if isinstance(result, tuple) and not result[0].is_inference():
            result[0].zero_()
            seen["others, after the first is changed"] = facts(result)
        return seen

    agree(program, observe, 6, 6, 5, 7, backend=backend, programs=2, within=KERNELS, fullgraph=True)


def filled(x):
    y = x * 2
    y.t().bernoulli_(0.5)
    x.data.t().bernoulli_(0.3)
    return y


def drawn_for_memory_outside(x):
    return torch.normal(x * 0, torch.ones(6, 4).t(), out=x.t().contiguous().t()), torch.bernoulli(x * 0, 0.5)


@backends
@pytest.mark.parametrize("program", [filled, drawn_for_memory_outside], ids=by_name)
@pytest.mark.parametrize("turned", [False, True])
def test_random_numbers_come_in_the_order_of_memory(turned, program, backend):
    def observe(function, seed):
        x = torch.zeros(6, 4).t() if turned else torch.zeros(4, 6)
        torch.manual_seed(seed)
        return {"result": facts(function(x)), "x": facts(x), "next": torch.rand(1)}

    agree(program, observe, 1, 1, 2, backend=backend, within=KERNELS)


def diagonal_of_data(x):
    x.copy_(x.clone())
    x.data.fill_diagonal_(2)


def diagonal(x):
    with torch.no_grad():
        x.fill_diagonal_(2)


def window(x):
    x.copy_(x.clone())
    x.as_strided((3,), (2,)).add_(1)


@backends
@pytest.mark.parametrize("program", [diagonal_of_data, diagonal, window], ids=by_name)
@pytest.mark.parametrize("part", [lambda x: x[1:], lambda x: x[:, 1:-1], lambda x: x.t(), lambda x: x[2:, ::2]])
@pytest.mark.parametrize("grad", [False, True])
def test_elements_by_where_they_lie_in_memory(grad, part, program, backend):
    def observe(function, call):
        whole = torch.arange(72.0).view(9, 8)
        x = part(whole).requires_grad_(grad and program is diagonal)
        function(x)
        return {"whole": whole}

    agree(program, observe, 1, 1, backend=backend, within=KERNELS, programs=1, fullgraph=True)


def there_and_back(x, y):
    x.pow_(2)
    y.squeeze_(0).unsqueeze_(0)


def turned_twice(x, y):
    x.pow_(2)
    y.transpose_(0, 1).transpose_(0, 1)


@backends
@pytest.mark.parametrize("program", [there_and_back, turned_twice], ids=by_name)
@pytest.mark.parametrize("turned", [False, True])
def test_an_input_whose_shape_is_changed_and_restored(turned, program, backend):
    """The others are changed once."""

    def observe(function, call):
        x, y = torch.arange(4.0), torch.arange(60.0).view(3, 4, 5)
        y = (y.transpose(1, 2) if turned else y)[2:]
        function(x, y)
        return {"x": facts(x), "y": facts(y)}

    agree(program, observe, 1, 1, backend=backend, within=KERNELS, programs=1, fullgraph=True)


def written_through_a_view(x):
    y = 7 - x
    y[...].zero_()
    return y


def written_flat(x):
    y = 7 - x
    y.view(-1).add_(1)
    return y


def turned(x):
    y = 7 - x
    y.t_()
    return y


@backends
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [written_through_a_view, written_flat, turned], ids=by_name)
def test_a_result_is_a_view_of_nothing_in_secret(program, grad, backend):
    def observe(function, call):
        with torch.set_grad_enabled(grad):
            result = function(torch.ones(3, 4))
        result.detach_()  # which views refuse
        return {"result": result, "is a view": result._is_view()}

    agree(program, observe, 1, 1, backend=backend, within=KERNELS, programs=1, fullgraph=True)


def padded_and_turned(x):
    padded = torch.nn.functional.pad(x, (1, 2))
    joined = torch.cat([x, torch.ones(2, 3)])
    with torch.no_grad():
        x.swapaxes_(0, -1)
    return padded, joined


@backends
def test_a_backward_that_reads_nothing_of_an_input_which_has_another_shape_by_then(backend):
    def observe(function, call):
        x = torch.ones(5, 3).requires_grad_()
        padded, joined = function(x)
        weighted = padded.sum() + (joined * torch.arange(21.0).view(7, 3)).t().contiguous().t().sum()
        return {"gradient": torch.autograd.grad(weighted, x)}

    agree(padded_and_turned, observe, 1, 1, backend=backend, within=KERNELS)
