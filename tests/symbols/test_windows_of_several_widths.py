"""Windows on tensors of several widths, as ``tokens[:, :-1]``: strides that no size explains are symbols, too."""

import pytest
import torch
from sizing import BACKENDS, agree

import bothways
from bothways.testing import same

everywhere = pytest.mark.parametrize("backend", BACKENDS)
WIDTHS = (5, 6, 9, 12, 7, 6, 15, 20, 33, 8, 11)


def shifted(x):
    return (x * 2 + 1).sum(1), x.t().contiguous(), x[:, 1:], x.stride(0) + x.stride(1)


def windows(*, of, cut):
    return [(cut(torch.randn([width if size is None else size for size in of])).requires_grad_(),) for width in WIDTHS]


@everywhere
@pytest.mark.parametrize("cut", [lambda x: x[:, :-1], lambda x: x[:, :3], lambda x: x.t()[:-1].t()])
def test_one_program_for_all_widths(cut, backend):
    agree(shifted, windows(of=(4, None), cut=cut), backend)


@everywhere
def test_dimensions_around_a_window_follow_from_it(backend):
    calls = windows(of=(2, 3, None), cut=lambda x: x[..., :-1])
    agree(lambda x: (x.exp().sum(-1), x.transpose(0, 1).reshape(3, -1), x.stride()), calls, backend)


@everywhere
def test_a_window_is_written_to(backend):
    def fill(x):
        x.mul_(2)
        x[:, 0] = 1
        return x.sum()

    compiled = bothways.compile(fill, backend=backend, fullgraph=True)
    for width in WIDTHS:
        whole = torch.randn(4, width)
        other = whole.clone()
        assert same(fill(whole[:, :-1]), compiled(other[:, :-1])) and same(whole, other)
    assert len(bothways.history(compiled)) == 2


@everywhere
def test_inputs_and_labels_of_a_language_model(backend):
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    compiled = bothways.compile(model, backend=backend, fullgraph=True)
    for width in WIDTHS:
        tokens = torch.randint(0, 10, (3, width))
        expected, found = model(tokens[:, :-1]), compiled(tokens[:, :-1])
        assert same(found, expected)
        labels = torch.nn.functional.one_hot(tokens[:, 1:], 10) - 0.1
        gradients = [torch.autograd.grad((y * labels).sum(), list(model.parameters())) for y in (expected, found)]
        assert same(*gradients)
    assert len(bothways.history(compiled)) == 2


def test_what_is_dense_or_expanded_or_transposed_is_another_program():
    compiled = bothways.compile(lambda x: (x + 1, x.stride()), backend="eager", fullgraph=True)
    for width in (5, 6, 7, 8):
        whole = torch.randn(width - 1, width)
        for x in (whole[:, :-1], whole[:, :-1].contiguous(), whole[:, :-1].t(), whole[:, :1].expand(-1, width - 1)):
            (found, strides), expected = compiled(x), x + 1
            assert same(found, expected) and found.stride() == expected.stride() and strides == x.stride()
