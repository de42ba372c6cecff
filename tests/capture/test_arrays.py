"""Arrays of NumPy that PyTorch takes for tensors, as the indices of a minibatch: such a tensor is one of the inputs."""

import numpy as np
import pytest
import torch
from agreeing import agree

import bothways

x = torch.arange(24.0).reshape(6, 4)


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


def observe(function, array):
    given = array.copy()
    tensor = x.clone().requires_grad_()
    result = function(tensor, given)
    parts = result if isinstance(result, tuple) else (result,)
    sum(part.float().sum() for part in parts).backward() if any(part.requires_grad for part in parts) else None
    return {"result": result, "gradient": tensor.grad, "array": torch.from_numpy(given)}


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
    torch.as_tensor(array).add_(1)
    return tensor + 1


def test_what_shares_the_memory_of_an_array_is_left_to_numpy():
    agree(shares, observe, np.ones(4), np.ones(4))


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
