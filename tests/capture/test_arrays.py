"""Arrays of NumPy that PyTorch takes for tensors, as the indices of a minibatch: such a tensor is one of the inputs."""

import warnings

import numpy as np
import pytest
import torch
from agreeing import agree

import bothways

x = torch.arange(24.0).reshape(6, 4)
here = x.cpu()  # where arrays are


def minibatch(x, places):
    return x[places] * 2 + x[places].mean()


def in_a_tuple(x, places):
    return x[places, 0] + x.t()[1, places] + x[places][:, 1].sum()


def written(x, places):
    y = x.clone()
    y[places] = y[places] * 2
    y[places, 1] = 0.0
    return y


def a_tensor_of_it(x, array):
    own = torch.tensor(array, dtype=torch.float32)
    own.add_(1)
    return own, x.sum() * own


def as_another_dtype(x, array):
    return torch.as_tensor(array, dtype=torch.float16), torch.Tensor(array).mul_(2), torch.FloatTensor(array) + 1


def observe(function, array, x=x):
    given = array.copy()
    tensor = x.clone().requires_grad_()
    result = function(tensor, given)
    parts = result if isinstance(result, tuple) else (result,)
    sum(part.float().sum() for part in parts).backward() if any(part.requires_grad for part in parts) else None
    return {"result": result, "gradient": tensor.grad, "array": torch.from_numpy(given)}


def observe_here(function, array):
    return observe(function, array, here)


everywhere = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


@pytest.mark.every_backend
@everywhere
@pytest.mark.parametrize("program", [minibatch, in_a_tuple, written], ids=lambda f: f.__name__)
def test_an_index(program, backend):
    calls = [np.array([0, 2]), np.array([3, 1]), np.array([0, 1, 3]), np.array([2, 2, 1, 0]), np.array([1, 2])]
    agree(program, observe, *calls, backend=backend, fullgraph=True, programs=2)


@pytest.mark.every_backend
@everywhere
@pytest.mark.parametrize("program", [a_tensor_of_it, as_another_dtype], ids=lambda f: f.__name__)
def test_a_tensor_of_an_array(program, backend):
    calls = [np.linspace(0, 1, 4), np.linspace(-1, 2, 4), np.linspace(-1, 2, 4)]
    agree(program, observe, *calls, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("array", [
    np.array([[0, 1], [1, 2]]), np.array([True, False] * 3), np.array([1.0, 2.0]), np.array(2), np.array([9, 9]),
    np.array([0, 3], dtype=np.int32), np.arange(6)[::2], np.array([], dtype=np.int64), np.array([1, 2], dtype=">i8"),
])  # fmt: skip
def test_other_indices_do_what_they_do(array):
    def observed(function, call):
        try:
            return {"result": function(x, array)}
        except (IndexError, TypeError, ValueError) as error:
            return {"raised": str(error)}

    agree(lambda x, places: x[places] * 2, observed, 0, 0)
    agree(lambda x, places: torch.tensor(places) * 2, observed, 0, 0)


def shares(x, array):
    tensor = torch.from_numpy(array)
    tensor.mul_(2)
    return tensor + x.sum(), tensor


def shares_where_nothing_is_copied(x, array):
    first, second = torch.as_tensor(array, dtype=torch.float64, device="cpu"), torch.DoubleTensor(array[:0])
    first.add_(1)
    return first * x.sum(), second


def learns(x, array):
    leaf = torch.from_numpy(array).requires_grad_()
    (leaf * leaf).sum().backward()
    return leaf.grad, leaf


def asks_first(x, array):
    if isinstance(array, np.ndarray) and array.dtype == np.float64 and not hasattr(array, "cpu"):
        array = torch.from_numpy(array).float()
    return torch.as_tensor(array) * len(array)


def knows_its_shape(x, array):
    return torch.zeros(array.shape) + array.ndim, x.sum() * array.shape[0] / array.size + array.nbytes


@pytest.mark.every_backend
@everywhere
@pytest.mark.parametrize("program", [shares, learns, asks_first, knows_its_shape], ids=lambda f: f.__name__)
def test_a_tensor_in_the_memory_of_an_array(program, backend):
    calls = [np.linspace(0, 1, 4), np.linspace(-1, 2, 4), np.linspace(-1, 2, 5), np.linspace(-1, 2, 6)]
    compiled = agree(program, observe_here, *calls, backend=backend, fullgraph=True, programs=2)
    agree(program, observe_here, np.ones(4, dtype=np.float32), np.ones(4), backend=backend)
    agree(shares_where_nothing_is_copied, observe_here, *calls, backend=backend)
    result = compiled(here, array := np.ones(4))
    if program is shares:
        assert np.shares_memory(result[1].numpy(), array)


@everywhere
def test_it_is_another_object_each_time(backend):
    compiled = bothways.compile(lambda x, array: torch.from_numpy(array), backend=backend, fullgraph=True)
    array = np.ones(4)
    first, second = compiled(x, array), compiled(x, array)
    first.add_(1)
    assert first is not second
    assert second.tolist() == array.tolist() == [2.0] * 4

    def twice(x, array):
        first, second = torch.from_numpy(array), torch.as_tensor(array)
        first.add_(1)
        return first * second, torch.tensor(first is second)

    agree(twice, observe, np.ones(4), np.zeros(4), backend=backend)


@everywhere
def test_other_tensors_in_the_same_memory_are_seen_to_change(backend):
    def program(x, array, other):
        tensor = torch.from_numpy(array)
        other.add_(1)
        before = tensor * x.sum()
        tensor.add_(2)
        return before, tensor + other, torch.tensor(array)

    def observed(function, is_shared):
        array = np.arange(4.0)
        result = function(here, array, torch.from_numpy(array if is_shared else np.ones(4)))
        return {"result": result, "array": array.tolist()}

    agree(program, observed, True, True, False, False, True, backend=backend)


@everywhere
def test_an_array_that_is_filled_again_before_the_backward(backend):
    """What eager keeps of the array itself is read then, what it has computed is as it was."""

    def observed(function, start):
        array, weight = np.arange(start, start + 4), torch.arange(4.0, device="cpu", requires_grad=True)
        loss = function(weight, array)
        array[:] = 7.0
        loss.backward()
        return {"loss": loss, "gradient": weight.grad}

    for program in (
        lambda weight, array: (torch.from_numpy(array).float() * weight).sin().sum(),
        lambda weight, array: (torch.from_numpy(array) * weight).sin().sum(),
    ):
        agree(program, observed, 0.0, 1.0, 1.0, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("array", [
    np.arange(6.0)[::-1], np.array([1.0, 2.0], dtype=">f8"), np.zeros(3, dtype=[("a", "i1"), ("b", "f8")])["b"],
    np.array(["a"]), np.array([1 + 1j]), np.broadcast_to(np.ones(1), 3), np.ones((2, 2)).T, np.float64(2), [1.0],
])  # fmt: skip
def test_arrays_that_pytorch_takes_otherwise_or_refuses(array):
    def observed(function, call):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an array that cannot be written to, once in a process
                return {"result": function(x, array)}
        except (TypeError, ValueError) as error:
            return {"raised": str(error)}

    for program in (torch.from_numpy, torch.as_tensor, torch.DoubleTensor):
        agree(lambda x, given, program=program: program(given) * 2, observed, 0, 0)


@pytest.mark.parametrize("program", [
    lambda x, array: array + 1, lambda x, array: array == array, lambda x, array: x.sum() * array,
    lambda x, array: [float(one) for one in array], lambda x, array: np.mean(array), lambda x, array: array[0],
    lambda x, array: array.copy(), lambda x, array: str(array), lambda x, array: 3.0 in array,
    lambda x, array: array.T, lambda x, array: torch.tensor([array, array]), lambda x, array: -array,
    lambda x, array: torch.from_numpy(array[1:]), lambda x, array: array.size and array.any(),
])  # fmt: skip
def test_what_computes_with_an_array_is_left_to_numpy(program):
    def observed(function, start):
        result = function(here, np.arange(start, start + 3))
        return {"result": torch.as_tensor(result) if isinstance(result, np.ndarray) else result}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a list of arrays is slow, says PyTorch
        agree(program, observed, 0.0, 3.0, 3.0)


def changed(x, array):
    first = x[array]
    array += 1
    return first + x[array]


def changed_through_a_tensor(x, array, tensor):
    first = x[array]
    tensor.add_(1)
    return first + x[array]


def test_an_array_that_changes_is_read_when_it_is_used():
    agree(changed, observe, np.array([0, 1]), np.array([2, 3]), np.array([2, 3]))

    def observed(function, start):
        array = np.array([start, start + 1])
        return {"result": function(x, array, torch.from_numpy(array)), "array": array.tolist()}

    agree(changed_through_a_tensor, observed, 0, 1, 1)


def test_an_array_is_shuffled_before_the_backward():
    """PyTorch then goes by the new places, whose array the index was."""
    for backend in ("aot_eager", "native"):
        compiled = bothways.compile(minibatch, backend=backend)
        for _ in range(2):
            gradients = []
            for function in (minibatch, compiled):
                places, tensor = np.array([0, 1, 1, 5]), x.clone().requires_grad_()
                result = function(tensor, places)
                places[:] = 2
                result.sum().backward()
                gradients.append(tensor.grad)
            assert torch.equal(*gradients)


def on_the_device_of_a_block(x, array, n):
    with torch.device("meta"):
        made = torch.tensor(array), torch.as_tensor(array), torch.as_tensor(array, device="cpu")
        return x + n, *made, torch.tensor([n, 1]), torch.tensor(n), torch.as_tensor(n * 0.5)


@everywhere
def test_tensors_are_made_where_a_block_says(backend):
    compiled = bothways.compile(on_the_device_of_a_block, backend=backend, fullgraph=True)
    for n in (2, 3, 4, 5):
        array = np.arange(3.0)
        expected, found = (function(x, array, n) for function in (on_the_device_of_a_block, compiled))
        assert [(one.device, one.shape, one.dtype) for one in found] == [(e.device, e.shape, e.dtype) for e in expected]
        assert found[0].equal(expected[0]) and found[3].equal(expected[3])
