"""Texts, graphs, point clouds: a list of tensors whose first sizes all change, made one batch inside of the function.
Which one is the longest is another one with each call, and no reason for another program."""

import pytest
import torch
import torch.nn.functional as F
from sizing import BACKENDS, agree
from torch.nn.utils.rnn import pad_sequence

# The longest is the first, the second, the last, all of them, two of them; then the shortest one changes.
LENGTHS = [(7, 3, 5), (9, 4, 6), (4, 9, 6), (2, 5, 11), (6, 6, 6), (8, 3, 8), (3, 12, 2)]
everywhere = pytest.mark.parametrize("backend", BACKENDS)


def lists(*trailing, grad=True):
    return [([torch.randn(length, *trailing, requires_grad=grad) for length in lengths],) for lengths in LENGTHS]


def padded_by_hand(texts):
    longest = max(text.shape[0] for text in texts)
    return torch.stack([F.pad(text, (0, longest - len(text))) for text in texts]).exp(), longest


def written_into_zeros(texts):
    batch = torch.zeros(len(texts), max([len(text) for text in texts]))
    mask = torch.zeros_like(batch, dtype=torch.bool)
    for number, text in enumerate(texts):
        batch[number, : len(text)] = text
        mask[number, : len(text)] = True
    return (batch * 2).sum(1), mask, mask.float().mean()


def cut_to_the_shortest(texts):
    shortest = min(*(len(text) for text in texts))
    return torch.stack([text[:shortest] for text in texts]).tanh(), shortest


def between_the_two(texts):
    longest, shortest = max(map(len, texts)), min(map(len, texts))
    return texts[0].new_ones(longest - shortest + 2).cumsum(0), longest > 2, longest - len(texts[0]) >= 0


@everywhere
@pytest.mark.parametrize("function", [padded_by_hand, written_into_zeros, cut_to_the_shortest, between_the_two],
                         ids=lambda function: function.__name__)  # fmt: skip
def test_the_longest_is_another_one_each_time(function, backend):
    agree(function, lists(), backend)


@everywhere
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "batch second"])
def test_pad_sequence(batch_first, backend):
    def batch(texts):
        return pad_sequence(texts, batch_first, padding_value=-1.0) * 2

    agree(batch, lists(), backend)
    agree(batch, lists(3), backend)


@everywhere
def test_pad_sequence_on_the_left(backend):
    agree(lambda texts: pad_sequence(texts, padding_side="left").cos(), lists(), backend)


@everywhere
def test_pad_sequence_of_what_is_only_nearly_alike(backend):
    """PyTorch copies into what is like the first: other dtypes are converted, other sizes repeated."""

    def batch(texts):
        dtypes = pad_sequence([texts[0].double(), *texts[1:]], True)
        return dtypes, pad_sequence([texts[0][:, None].expand(-1, 2), texts[1][:, None]], True)

    agree(batch, lists(), backend, programs=len(LENGTHS))


@everywhere
def test_thirty_texts(backend):
    torch.manual_seed(0)
    calls = [([torch.randn(int(length)) for length in torch.randint(2, 40, (30,))],) for _ in range(4)]
    agree(lambda texts: pad_sequence(texts, True).sum(1), calls, backend, programs=3)  # one may keep its length once


@everywhere
def test_a_length_and_a_number(backend):
    def at_least(x):
        return F.pad(x, (0, max(8, len(x)) - len(x))), x[: min(len(x), 5)]

    agree(at_least, [(torch.randn(length, requires_grad=True),) for length in (3, 7, 12, 8, 2, 30)], backend)
