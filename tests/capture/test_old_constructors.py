"""Tensors that are made by ``torch.Tensor``, ``torch.FloatTensor`` and their like, or by ``x.new``."""

import numpy
import pytest
import torch
from agreeing import agree

import bothways
from bothways import torch_compat
from bothways.errors import Unsupported

BACKENDS = ["eager", "aot_eager", "native"]
TYPES = [
    torch.Tensor, torch.FloatTensor, torch.DoubleTensor, torch.HalfTensor, torch.BFloat16Tensor, torch.ByteTensor,
    torch.CharTensor, torch.ShortTensor, torch.IntTensor, torch.LongTensor, torch.BoolTensor,
]  # fmt: skip


def observe(run, x):
    x = x.clone().requires_grad_(x.is_floating_point())
    result = run(x)
    total = sum(part.double().sum() for part in result)
    if total.requires_grad:
        total.backward()
    return {"result": [part.detach() for part in result], "gradient": x.grad}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_numbers_and_sizes(kind, backend):
    def function(x):
        return x * kind([1, 2, 3]).sum(), kind(((1.0, 0.0), (2.5, 3.0))), kind(2, x.shape[0]).fill_(1), kind([True])

    calls = [torch.randn(3), torch.randn(3), torch.randn(3, dtype=torch.float64)]
    agree(function, observe, *calls, backend=backend, fullgraph=True, programs=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_the_same_kind_as_a_tensor(backend):
    def function(x):
        return x + x.new([1, 2, 3]), x.new(x.shape).zero_(), x.new((1, 2)), x.new(2, 3).fill_(4), x.new()

    calls = [torch.randn(3), torch.randn(3), torch.arange(3)]
    agree(function, observe, *calls, backend=backend, fullgraph=True, programs=2)


class Named(torch.Tensor):
    """A class of tensors without a handler of its own."""


@pytest.mark.parametrize("data", [[1, 2], 3, (1.5,)], ids=str)
def test_a_tensor_of_a_class_gives_one_of_its_class(data):
    def function(x):
        return x.new(data).fill_(2)

    plain = function(torch.ones(2).as_subclass(Named))
    compiled = bothways.compile(function, backend="eager")(torch.ones(2).as_subclass(Named))
    assert type(compiled) is type(plain) is Named
    assert compiled.tolist() == plain.tolist() and compiled.dtype is plain.dtype


def test_the_default_dtype_is_the_callers():
    def function(x):
        return [torch.Tensor([1, 2]) + x]

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert compiled(torch.ones(2, dtype=torch.int64))[0].dtype is dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_where_tensors_are_made_is_the_callers(monkeypatch):
    """As ``torch.set_default_tensor_type`` says; types that name a dtype are the CPU's."""
    places = ["meta"]
    monkeypatch.setattr(torch_compat, "device_of_tensor_types", lambda: places[0])

    def function(array):
        made = torch.Tensor([1, 2]), torch.Tensor(2), torch.tensor(array), torch.as_tensor(array), torch.Tensor(array)
        return *made, torch.FloatTensor([1]), torch.FloatTensor(array), torch.tensor(array, device="cpu")

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for place in ("meta", "meta", "cpu", "meta"):
        places[0] = place
        found = [tensor.device.type for tensor in compiled(numpy.ones(2))]
        assert found == [place] * 5 + ["cpu"] * 3
    assert len(bothways.history(compiled)) == 2


def test_the_old_type_of_a_tensor():
    def function(x):
        return (x * 2).type(torch.float64), x.type(), (x > 0).type()

    agree(function, lambda run, x: {"result": run(x)}, torch.ones(2), torch.ones(3), backend="eager", fullgraph=True)
    compiled = bothways.compile(lambda x: x.type(torch.float64), backend="eager", fullgraph=True)
    found = compiled(torch.ones(2, device="meta"))
    assert (found.device.type, found.dtype) == ("meta", torch.float64)


@pytest.mark.parametrize("data", [[2**70], [[1], [2, 3]], [1, "a"], 2.0, "ab"], ids=str)
def test_what_is_refused_is_refused_as_by_pytorch(data):
    def function(x):
        return x + torch.LongTensor(data)

    with pytest.raises(Exception) as plain:
        function(torch.ones(2))
    with pytest.raises(type(plain.value)) as compiled:
        bothways.compile(function, backend="eager")(torch.ones(2))
    assert str(compiled.value) == str(plain.value)


def test_what_shares_memory_or_reads_data_stays_with_python():
    def function(x):
        return torch.Tensor(x) * 2

    with pytest.raises(Unsupported, match="something else than sizes or numbers"):
        bothways.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
    assert bothways.compile(function, backend="eager")(torch.ones(2)).tolist() == [2, 2]
    numbers = bothways.compile(lambda x: torch.Tensor([x.sum(), 1]) + x, backend="eager")
    assert numbers(torch.ones(2)).tolist() == [3, 2]
