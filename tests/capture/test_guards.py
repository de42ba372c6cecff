"""Guards: what a program relied on must be checked, and nothing else.

Every test calls once to capture, again to hit, and then with something changed: what was relied on makes a new
program and the right answer; what was not relied on makes none.
"""

import collections
import enum

import pytest
import torch
from guarding import Steps, changes, is_one_program
from torch import nn
from torch.overrides import TorchFunctionMode

import bothways
from bothways.testing import CompileCounter

X = torch.arange(4.0)


# Tensors


def facts(x):
    y = x * 2
    return y, y.dtype, y.shape, x.stride(), y.requires_grad


TENSORS = {
    "type": (torch.ones(3), nn.Parameter(torch.ones(3), requires_grad=False)),
    "dtype": (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int32)),
    "device": (torch.ones(3), torch.ones(3, device="meta")),
    "rank": (torch.ones(4), torch.ones(2, 2), torch.ones(4, 1), torch.tensor(1.0)),
    "sizes": (torch.ones(3, 4), torch.ones(4, 3), torch.ones(0, 4), torch.ones(4, 0)),
    "strides": (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 8)[:, ::2], torch.ones(3, 1).expand(3, 4)),
    "strides of one row": (torch.ones(1, 4), torch.ones(4, 1).t(), torch.ones(1, 1).expand(1, 4)),
    "requires_grad": (torch.ones(3), torch.ones(3, requires_grad=True)),
}


@pytest.mark.parametrize("fact", TENSORS)
def test_tensor(fact):
    changes(facts, *[(tensor,) for tensor in TENSORS[fact]])


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (0, 4)], ids=str)
def test_tensor_layout(shape):
    compiled = bothways.compile(lambda x: x * 2)
    dense = torch.ones(shape)
    assert torch.equal(compiled(dense), dense * 2)
    sparse = dense.to_sparse()
    assert compiled(sparse).is_sparse
    assert torch.equal(compiled(sparse).to_dense(), dense * 2)


def test_tensor_subclass_is_not_taken_for_a_tensor():
    class Tagged(torch.Tensor):
        pass

    compiled = bothways.compile(lambda x: x * 2)
    assert type(compiled(X)) is torch.Tensor
    assert type(compiled(X.as_subclass(Tagged))) is Tagged


@pytest.mark.parametrize("other", [3, 2.5, "ab", None, [1], (1,), {}], ids=repr)
def test_what_is_no_tensor_is_not_taken_for_one(other):
    def program(x):
        return x if x is None or isinstance(x, dict) else x * 2

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X * 2)
    assert compiled(other) == program(other)


def test_tensor_content_is_not_guarded():
    is_one_program(lambda x: x * 2, (torch.ones(3),), (torch.zeros(3),), (torch.full((3,), float("nan")),))


def test_whether_a_tensor_is_a_leaf():
    leaf = torch.ones(3, requires_grad=True)
    changes(lambda x: (x.detach() * 2, x.is_leaf), (leaf,), (leaf * 1,))


def test_gradient_of_a_tensor():
    steps = Steps(lambda x: x.detach() + 1 if x.grad is None else x.detach() + x.grad)
    leaf = torch.ones(3, requires_grad=True)
    steps.agree(leaf, frames=1)
    leaf.grad = torch.full((3,), 5.0)
    steps.agree(leaf, frames=2)


def test_attribute_of_a_tensor():
    steps = Steps(lambda x: x + getattr(x, "shift", 0))
    tensor = torch.ones(3)
    steps.agree(tensor, frames=1)
    tensor.shift = 2
    steps.agree(tensor, frames=2)
    tensor.shift = 3
    steps.agree(tensor, frames=3)


# Interpreter state


def test_grad_mode():
    steps = Steps(lambda x: ((x * 2).requires_grad, torch.is_grad_enabled(), x.detach() * 2))
    x = torch.ones(3, requires_grad=True)
    steps.agree(x, frames=1)
    with torch.no_grad():
        steps.agree(x, frames=2)
    steps.agree(x, frames=2)


def test_inference_mode():
    steps = Steps(lambda x: ((x * 2).is_inference(), x * 2))
    steps.agree(X, frames=1)
    with torch.inference_mode():
        steps.agree(X, frames=2)
    steps.agree(X, frames=2)


def test_autocast():
    steps = Steps(lambda x: ((x @ x).dtype, torch.is_autocast_enabled("cpu"), x * 2))
    x = torch.ones(3, 3)
    steps.agree(x, frames=1)
    with torch.autocast("cpu", torch.bfloat16):
        steps.agree(x, frames=2)
    with torch.autocast("cpu", torch.float16):
        steps.agree(x, frames=3)
    steps.agree(x, frames=3)


def test_default_dtype():
    steps = Steps(lambda x: torch.ones(3) + torch.arange(3))
    steps.agree(X, frames=1)
    torch.set_default_dtype(torch.float64)
    try:
        steps.agree(X, frames=2)
    finally:
        torch.set_default_dtype(torch.float32)
    steps.agree(X, frames=2)


def test_deterministic_algorithms():
    steps = Steps(lambda x: x + torch.are_deterministic_algorithms_enabled())
    steps.agree(X, frames=1)
    torch.use_deterministic_algorithms(True)
    try:
        steps.agree(X, frames=2)
    finally:
        torch.use_deterministic_algorithms(False)


def test_torch_function_mode():
    class CountCalls(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            CountCalls.calls += 1
            return function(*args, **(kwargs or {}))

    counter = CompileCounter()
    compiled = bothways.compile(lambda x: x * 2, backend=counter)
    compiled(X)
    with CountCalls():
        for _ in range(5):
            compiled(X)
    assert CountCalls.calls == 5, "the mode sees what it would see of the plain function"
    compiled_under_modes = counter.frame_count
    compiled(X)
    assert counter.frame_count == compiled_under_modes
    compiled(torch.ones(3))
    assert counter.frame_count == compiled_under_modes + 1, "calls under a mode are no reason to give up"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_function_transforms_see_the_plain_function(backend):
    def program(x):
        return (x * x).sum()

    compiled = bothways.compile(program, backend=backend)
    for _ in range(2):  # before there is a program, and after
        assert torch.equal(torch.func.grad(compiled)(X), X * 2)
        assert torch.equal(torch.vmap(compiled)(torch.ones(3, 4)), torch.full((3,), 4.0))
        compiled(X)
        compiled(X.clone().requires_grad_())


# Python values


def shown(x, value):
    return x + 1, repr(value), type(value).__name__


VALUES = {
    "int": (1, 2, -1, 10**30),
    "bool": (True, False),
    "float": (1.0, 2.5, float("inf"), float("-inf")),
    "zero": (0.0, -0.0, 0, False),
    "one": (1, True, 1.0, 1 + 0j),
    "complex": (1j, complex(0.0, -1.0), complex(-0.0, 1.0)),
    "str": ("a", "b", ""),
    "bytes": (b"a", b"b", "a"),
    "None": (None, 0, "None", False),
    "dtype": (torch.float32, torch.float64),
    "range": (range(3), range(1, 3), range(0, 6, 2)),
    "tuple": ((1, 2), (2, 1), (1, 2, 3), (1, True), [1, 2]),
    "list": ([1, 2], [2, 1], [1], [1.0, 2]),
    "dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 3}),
    "keys": ({1: "x"}, {True: "x"}, {1.0: "x"}),
    "class": (int, bool, float),
    "slice": (slice(1), slice(1, None), slice(None, 1, 2)),
}


@pytest.mark.parametrize("kind", VALUES)
def test_value(kind):
    changes(shown, *[(X, value) for value in VALUES[kind]])


def test_nan_equals_itself_here():
    nan = float("nan")
    is_one_program(shown, (X, nan), (X, nan), (X, float("nan")))


def test_type_of_a_container():
    changes(
        lambda x, d: (x + 1, type(d).__name__, len(d)),
        (X, {"a": 1}),
        (X, collections.OrderedDict(a=1)),
        (X, collections.defaultdict(int, a=1)),
    )


def test_length():
    changes(lambda x, values: x + len(values), (X, [1, 2]), (X, [1, 2, 3]), (X, []))


def test_presence_of_a_key():
    changes(lambda x, d: x + ("a" in d), (X, {"a": 1}), (X, {}))


def test_a_key_that_is_gone_raises_as_in_python():
    compiled = bothways.compile(lambda x, d: x + d["a"])
    assert torch.equal(compiled(X, {"a": 1}), X + 1)
    with pytest.raises(KeyError, match="a"):
        compiled(X, {})
    assert torch.equal(compiled(X, collections.defaultdict(lambda: 7)), X + 7)


# Aliasing


def test_the_same_tensor_twice():
    def program(x, y):
        x.add_(1)
        return x + y

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        both = torch.ones(3)
        assert torch.equal(compiled(both, both), torch.full((3,), 4.0))
    assert counter.frame_count == 2


def test_the_same_list_twice():
    def program(x, a, b):
        a.append(1)
        return x + len(b)

    for first_is_shared in (True, False):
        compiled = bothways.compile(program)
        for is_shared in (first_is_shared, not first_is_shared, first_is_shared):
            a = []
            b = a if is_shared else []
            assert torch.equal(compiled(X, a, b), X + (1 if is_shared else 0))


class Plain:
    pass


ONE, OTHER = Plain(), Plain()
IDENTITIES = {
    "list": ([1], [1]),
    "dict": ({}, {}),
    "object": (ONE, OTHER),
    "function": (lambda: 1, lambda: 1),
    "tensor": (torch.ones(2), torch.ones(2)),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_identity(kind):
    one, other = IDENTITIES[kind]
    changes(lambda x, a, b: x + (a is b), (X, one, other), (X, one, one))
    changes(lambda x, a, b: x + (a is b), (X, one, one), (X, one, other))


def test_identity_in_equality_and_containment():
    changes(lambda x, a, b: x + (a == b), (X, ONE, OTHER), (X, ONE, ONE))
    changes(lambda x, a, b: x + (a in b), (X, ONE, [OTHER]), (X, ONE, [ONE]))
    changes(lambda x, a, b: x + b.index(a), (X, ONE, [OTHER, ONE]), (X, ONE, [ONE, OTHER]))
    changes(lambda x, a, b: x + (a in b), (X, ONE, {OTHER: 1}), (X, ONE, {ONE: 1}))


def test_a_key_whose_text_is_none():
    class Kind(enum.Enum):
        ONE = 1

        def __str__(self):
            return self.value

    is_one_program(lambda x, table: x * table[Kind.ONE], (X, {Kind.ONE: 2.0}), (X, {Kind.ONE: 2.0}))
