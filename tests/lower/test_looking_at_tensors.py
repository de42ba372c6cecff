"""The number that stands for where many tensors lie is another one as soon as any of them lies elsewhere."""

import gc
import struct
import sys
import threading

import pytest
import torch

from bothways import torch_compat
from bothways.calls import call_library as calls
from bothways.replay.starting import places_of

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
    assert references > 0 and held != 0
    owner = torch.zeros(2, requires_grad=True)
    owner.grad = torch.ones(2)
    lent = calls.lent_tensors([0])
    note, launched = LIBRARY.noting(lent), []
    start = LIBRARY.starting(lambda: launched.append(1), nowhere(), lent=lent)
    assert start((), (owner,), False) is False
    note((owner.grad,))
    assert [one is owner.grad for one in start((), (owner,), False)] == [True]
    also = owner.grad
    assert start((), (owner,), False) is False
    del also
    assert start((), (owner,), False) is not False and len(launched) == 2
    assert start((), None, False) is True and len(launched) == 3


def nowhere():
    """Places of no inputs."""
    return struct.pack("5q", 0, 0, 0, 0, 0)


def starting(tensors, changes=(), copied=(), launch=lambda: None, numbers=0):
    values = (*[1.0] * numbers, *tensors)
    places, counts = places_of(values, [numbers + place for place in copied], dict(changes))
    return LIBRARY.starting(launch, places), counts


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_launched_for_what_lies_elsewhere(change):
    launched, tensors = [], some()
    start, counts = starting(tensors, launch=lambda: launched.append(1))
    assert counts and start(tensors, None, False) is True and len(launched) == 1
    change(tensors)
    assert start(tensors, None, False) is False and len(launched) == 1


@pytest.mark.parametrize("change", [of_another_class, sparse, no_tensor, one_less])
def test_nothing_is_launched_for_what_is_no_plain_tensor(change):
    tensors = some()
    start, _ = starting(tensors)
    assert start(change(tensors), None, False) is False


def test_inputs_may_come_behind_numbers():
    tensors = some()
    start, _ = starting(tensors, numbers=2)
    assert start((3.0, 4.0, *tensors), None, False) is True and start(tensors, None, False) is True
    assert start((4.0, *tensors), None, False) is False


def test_what_is_changed_is_counted_with_the_launch():
    tensors, seen = some(), []
    start, _ = starting(tensors, {3: 2, 0: 1, 19: 1}, launch=lambda: seen.append(tensors[3]._version))
    assert start(tensors, None, True) is True
    assert seen == [2] and [tensors[place]._version for place in (0, 3, 4, 19)] == [1, 2, 0, 1]
    assert start(tensors, None, False) is True and seen == [2, 2]


def test_a_launch_that_raises_has_counted_nothing():
    def fail():
        raise ValueError("no device")

    tensors = some()
    start, _ = starting(tensors, {3: 2, 0: 1}, launch=fail)
    for counts in (True, False):
        with pytest.raises(ValueError, match="no device"):
            start(tensors, None, counts)
    assert [tensors[place]._version for place in (0, 3)] == [0, 0]


def test_what_is_copied_may_lie_anywhere_but_over_others():
    tensors = list(some())
    start, counts = starting(tensors, {4: 1}, copied=(7, 8))
    tensors[7] = torch.zeros(4)
    assert counts and start(tuple(tensors), None, True) is True and tensors[4]._version == 1
    for other in (4, 8):
        tensors[7] = tensors[other].view(4)
        assert start(tuple(tensors), None, True) is False
    assert start(tuple(tensors), None, False) is True and tensors[4]._version == 1


def test_changes_are_not_counted_where_inputs_lie_over_one_another():
    tensors = list(some())
    tensors[3] = tensors[4].view(4)
    _, counts = starting(tensors, {4: 1})
    assert not counts


@pytest.mark.parametrize("size", [0, 4, 400])
def test_a_storage_that_is_resized_is_not_held_as_it_was(size):
    tensor = torch.zeros(10)
    held = calls.held_storages([tensor.untyped_storage()])
    are_held, start = LIBRARY.holding(held), LIBRARY.starting(lambda: None, nowhere(), held)
    assert are_held() and start((), None, False) is True
    also = tensor.detach()
    assert not are_held() and start((), None, False) is False
    del also
    assert are_held() and start((), None, False) is True
    tensor.untyped_storage().resize_(size)
    assert not are_held() and start((), None, False) is False


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_afterwards_as_it_was(is_on):
    """Before Python 3.12 it may start where an object is made: it waits until the launch is over."""

    def fail():
        seen.append(gc.isenabled())
        raise ValueError("no device")

    seen, tensors = [], some()
    start, _ = starting(tensors, {3: 1}, launch=lambda: seen.append(gc.isenabled()))
    failing, _ = starting(tensors, {3: 1}, launch=fail)
    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        for counts in (True, False):
            assert start(tensors, None, counts) is True and gc.isenabled() is is_on
            with pytest.raises(ValueError, match="no device"):
                failing(tensors, None, counts)
            assert gc.isenabled() is is_on
            assert start(tensors[1:], None, counts) is False and gc.isenabled() is is_on
            assert start((*tensors[1:], tensors[0]), None, counts) is False and gc.isenabled() is is_on
            with pytest.raises(TypeError):
                start(list(tensors), None, counts)
            assert gc.isenabled() is is_on
        assert set(seen) == {is_on and sys.version_info >= (3, 12)}
    finally:
        (gc.enable if before else gc.disable)()


def test_the_collector_runs_again_after_launches_of_several_threads():
    """Each waits within its launch until the other one is within its own."""
    together = threading.Barrier(2)
    given, done = some(), []
    starts = [starting(given, launch=lambda: together.wait(10))[0] for _ in range(2)]
    threads = [threading.Thread(target=lambda one=one: done.append(one(given, None, False))) for one in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True, True] and gc.isenabled()
