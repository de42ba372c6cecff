"""What C reads and writes of many tensors at once is what PyTorch's own functions say."""

import pytest
import torch

from bothways.calls.call_library import held_storages, word_library

LIBRARY = word_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler, or tensors of another form")


def test_versions_are_set():
    tensors = [torch.zeros(3), torch.nn.Parameter(torch.zeros(2)), torch.zeros(4)[1:]]
    assert LIBRARY.versions({0: 5, 2: 7})(tensors)
    assert [tensor._version for tensor in tensors] == [5, 0, 7]
    tensors[2].add_(1)
    assert tensors[2]._version == 8 and tensors[2]._base._version == 8


class Subclass(torch.Tensor):
    pass


def inference():
    with torch.inference_mode():
        return torch.zeros(2)


@pytest.mark.parametrize("other", [None, 3, inference(), torch.zeros(2).as_subclass(Subclass)], ids=type)
def test_nothing_is_counted_where_one_is_no_plain_tensor(other):
    tensor = torch.zeros(2)
    assert not LIBRARY.versions({0: 5, 1: 5})((tensor, other))
    assert not LIBRARY.counting([(0, 0, 1), (1, 1, 1)])((tensor, other), (tensor, other))
    assert not LIBRARY.counting([(0, 0, 1), (1, 1, 1)])((tensor,), (tensor,))
    assert tensor._version == 0


def test_changes_are_counted_of_results_that_are_inputs():
    inputs = (torch.zeros(2), torch.zeros(3), torch.nn.Parameter(torch.zeros(2)))
    count = LIBRARY.counting([(2, 0, 2), (0, 1, 1), (1, 2, 0)])
    assert count(inputs, [inputs[2], inputs[0], inputs[1]])
    assert [tensor._version for tensor in inputs] == [1, 0, 2]
    assert not count(inputs, [inputs[2], inputs[0].clone(), inputs[1]])
    assert [tensor._version for tensor in inputs] == [1, 0, 2]


def test_holders_of_memory_are_noticed():
    tensors = [torch.zeros(3), torch.zeros(4)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    are_as_now = LIBRARY.holding(held_storages(storages))
    assert are_as_now()
    held = tensors[1][1:]
    assert not are_as_now()
    del held
    assert are_as_now()
