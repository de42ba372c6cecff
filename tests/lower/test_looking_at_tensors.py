"""The number that stands for where many tensors lie is another one as soon as any of them lies elsewhere."""

import pytest
import torch

from bothways import torch_compat
from bothways.calls import call_library as calls

LIBRARY = calls.word_library()
pytestmark = pytest.mark.skipif(
    LIBRARY is None or not torch_compat.offset_word(), reason="no C compiler, or tensors of another form"
)


class Subclass(torch.Tensor):
    pass


def some(count=20):
    own = [torch.zeros(4) for _ in range(count - 2)]
    return (*own, torch.nn.Parameter(torch.zeros(3)), torch.zeros(8)[2:])


def test_the_number_stays_while_tensors_lie_where_they_lie():
    look, tensors = LIBRARY.looking(20), some()
    number = look(tensors)
    assert number > 0 and [look(tensors) for _ in range(3)] == [number] * 3
    tensors[3].add_(1)
    again = (*tensors[:-1], tensors[-1].detach(), )  # another tensor in the same place
    assert look(again) == number
    assert LIBRARY.looking(20)(tensors) not in (0, number)


def moved(tensors):
    tensors[5].data = torch.zeros(4)


def grown(tensors):
    tensors[5].resize_(4000)


def exchanged(tensors):
    tensors[5].data, tensors[6].data = tensors[6].data, tensors[5].data


def moved_parameter(tensors):
    tensors[-2].data = torch.zeros(3)


def shifted(tensors):  # the same memory, of which it is another part
    tensors[-1].set_(tensors[-1].untyped_storage(), 1, (6,), (1,))


def to_the_beginning(tensors):
    tensors[-1].set_(tensors[-1].untyped_storage(), 0, (6,), (1,))


CHANGES = [moved, grown, exchanged, moved_parameter, shifted, to_the_beginning]


@pytest.mark.parametrize("change", CHANGES)
def test_what_lies_elsewhere_gets_another_number(change):
    look, tensors = LIBRARY.looking(20), some()
    before = look(tensors)
    change(tensors)
    after = look(tensors)
    assert after not in (0, before) and look(tensors) == after


def overlapping(tensors):
    tensors[5].data = tensors[-1].data


def of_inference_mode(tensors):
    with torch.inference_mode():
        return (*tensors[:-1], torch.zeros(2))


def of_another_class(tensors):
    return (*tensors[:-1], torch.zeros(2).as_subclass(Subclass))


def sparse(tensors):
    return (*tensors[:-1], torch.zeros(2).to_sparse())


def no_tensor(tensors):
    return (*tensors[:-1], 3)


def one_less(tensors):
    return tensors[:-1]


def a_list(tensors):
    return list(tensors)


@pytest.mark.parametrize(
    "change", [overlapping, of_inference_mode, of_another_class, sparse, no_tensor, one_less, a_list]
)
def test_what_is_not_sure_has_no_number(change):
    look, tensors = LIBRARY.looking(20), some()
    before = look(tensors)
    assert look(change(tensors) or tensors) == 0
    if change is not overlapping:
        assert look(tensors) > 0
    else:
        tensors[5].data = torch.zeros(4)
        assert look(tensors) not in (0, before)


def test_empty_tensors_lie_anywhere():
    look, tensors = LIBRARY.looking(22), (*some(), torch.zeros(0), torch.zeros(0, 3))
    assert look(tensors) == look(tensors) > 0


@pytest.mark.parametrize("library", [True, False])
def test_items_are_arranged(monkeypatch, library):
    if not library:
        monkeypatch.setattr(calls, "_found", [None])
    arrange = calls.arranging([3, 0, 4, 0, 1], 3)
    assert arrange((10, 11, 12), [20, 21]) == arrange([10, 11, 12], (20, 21)) == (20, 10, 21, 10, 11)
    assert calls.arranging([], 2)([1, 2], []) == ()


def test_too_few_items_are_refused():
    with pytest.raises(TypeError):
        LIBRARY.arranging([3, 0, 4], 3)((10, 11, 12), (20,))


def test_changes_are_counted_of_all_inputs_where_no_results_are_given():
    inputs = (torch.zeros(2), torch.zeros(3), torch.nn.Parameter(torch.zeros(2)))
    count = LIBRARY.counting([(2, 0, 2), (0, 1, 1)])
    assert count(inputs) and [tensor._version for tensor in inputs] == [1, 0, 2]
    assert not count((inputs[0], inputs[1], 3)) and [tensor._version for tensor in inputs] == [1, 0, 2]


def test_how_gradients_are_held_is_known():
    references, held = torch_compat.held_as_gradient()
    owner = torch.zeros(2, requires_grad=True)
    owner.grad = torch.ones(2)
    give, note = LIBRARY.giving([0])
    assert give((owner,)) is False
    note((owner.grad,))
    assert [one is owner.grad for one in give((owner,))] == [True]
    also = owner.grad
    assert give((owner,)) is False
    del also
    assert give((owner,)) is not False and references > 0 and held != 0
    owner.grad = None
    assert give((owner,)) is False and give((3,)) is False and give(()) is False
