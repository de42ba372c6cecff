"""``torch.compile(m, backend="bothways")``: PyTorch captures, and our gradients and kernels do the work."""

import copy
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import bothways
from bothways.api.behind_pytorch import backend
from bothways.grad.differentiated import DifferentiatedGraph
from bothways.testing import same

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def nothing_captured_by_pytorch():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Recorded:
    """The backend, and what it gave."""

    def __init__(self):
        self.given = []

    def __call__(self, graph, inputs, **settings):
        self.given.append(backend(graph, inputs, **settings))
        return self.given[-1]


def test_the_entry_point_leads_to_the_backend():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = settings["project"]["entry-points"]["torch_dynamo_backends"]["bothways"].partition(":")
    assert getattr(import_module(module), name) is backend


def test_a_model_is_trained_and_its_sizes_change():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
    plain = torch.nn.Sequential(*layers)
    model, recorded = copy.deepcopy(plain), Recorded()
    compiled = torch.compile(model, backend=recorded)
    for size in (5, 5, 7, 9):
        x = torch.randn(size, 8)
        for network in (plain, compiled):
            network(x).pow(2).mean().backward()
        assert same(dict(plain.named_parameters()), dict(model.named_parameters()))
        assert same([p.grad for p in plain.parameters()], [p.grad for p in model.parameters()])
        assert same(list(plain.buffers()), list(model.buffers()))
    # PyTorch has captured twice: for the first size, and for all.
    assert len(recorded.given) == 2
    assert isinstance(recorded.given[0], DifferentiatedGraph)
    assert bothways.history(recorded.given[1])


def test_changes_breaks_and_settings():
    recorded, said = Recorded(), []

    def change(x):
        x.add_(1)
        y = x.sin()
        said.append(torch._dynamo.graph_break())
        with torch.no_grad():
            z = y.cos()
        return y * z, x[0]

    x, other = torch.zeros(4), torch.zeros(4)
    compiled = torch.compile(change, backend=recorded, mode="reduce-overhead")
    assert same(change(x), compiled(other)) and same(x, other)
    assert len(recorded.given) >= 2


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.utils.checkpoint.checkpoint(lambda t: t.sin().cos(), x, use_reentrant=False).sum(),
        lambda x: Doubling.apply(x).sum(),
        lambda x: torch.cond(x.sum() > 1, lambda x: x.sin(), lambda x: x.cos(), (x,)).sum(),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]).sum(),
    ],
    ids=["checkpoint", "custom function", "cond", "attention"],
)
def test_what_pytorch_has_nodes_of_its_own_for(function):
    x, other = (torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_() for _ in range(2))
    expected, actual = function(x), torch.compile(function, backend=backend, fullgraph=True)(other)
    expected.backward()
    actual.backward()
    assert same(expected, actual) and same(x.grad, other.grad)


def test_the_name_is_ours_as_well():
    double = bothways.compile(lambda x: x * 2, backend="bothways")
    assert same(double(torch.ones(3)), torch.full((3,), 2.0))
    assert "bothways" in bothways.list_backends()
    bothways.install()
    try:
        assert same(torch.compile(lambda x: x * 2, backend="bothways")(torch.ones(3)), torch.full((3,), 2.0))
    finally:
        bothways.uninstall()
