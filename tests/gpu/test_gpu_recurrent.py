"""Recurrent layers on a GPU, which cuDNN computes: captured, and run by ATen between what is compiled."""

import copy
import warnings

import pytest
import torch
from replaying import graphs
from torch import nn

import bothways
from bothways.testing import difference

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"]),
]
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "two_ways": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "dropping": {"dropout": 0.5, "num_layers": 3},
    "without_biases": {"bias": False},
}
TOLERANCE = 2e-3  # cuDNN computes in TensorFloat-32
SIZES = [(5, 3, 4), (5, 3, 4), (7, 2, 4), (9, 6, 4), (6, 4)]  # the last is one sequence alone


class Reader(nn.Module):
    """A layer among operations that become kernels."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = KINDS[kind](4, 6, **options)
        self.head = nn.Linear((options.get("proj_size") or 6) * (1 + options.get("bidirectional", False)), 3)

    def forward(self, x, state=None):
        out, last = self.layer(x.sin(), state)
        last = last if isinstance(last, tuple) else (last,)
        return self.head(out).tanh() * 2, *(one.exp() + 1 for one in last)


def readers(kind, **options):
    torch.manual_seed(0)
    plain = Reader(kind, **options).cuda()
    other = copy.deepcopy(plain)
    other.layer.flatten_parameters()
    return plain, other


def run(module, call, *args, backward=True):
    torch.manual_seed(3)  # dropout's numbers, cuDNN's as well
    x, *others = (arg.clone().requires_grad_(backward) for arg in args)
    results = call(x, *others)
    if backward:
        module.zero_grad()
        sum(number * one.float().sum() for number, one in enumerate(results, 1)).backward()
    gradients = [parameter.grad for parameter in module.parameters()] if backward else []
    return {
        "results": results, "strides": [one.stride() for one in results], "gradient": x.grad, "gradients": gradients,
        "dtypes": [one.dtype for one in results], "random state": torch.cuda.get_rng_state(),
    }  # fmt: skip


def assert_alike(plain, other, call, *args, tol=TOLERANCE, **options):
    expected, found = run(plain, plain, *args, **options), run(other, call, *args, **options)
    for name, value in expected.items():
        assert (differs := difference(value, found[name], tol=tol)) is None, f"{name}: {differs}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer_is_captured_whole(name, kind, backend):
    plain, other = readers(kind, **OPTIONS[name])
    compiled = bothways.compile(other, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="RNN module weights are not part of single contiguous")
        for size in SIZES:
            assert_alike(plain, other, compiled, torch.randn(size, device="cuda"))
    assert len({parameter.untyped_storage().data_ptr() for parameter in other.layer.parameters()}) == 1  # in one piece


def test_a_projection(backend):
    plain, other = readers("lstm", proj_size=2, bidirectional=True)
    compiled = bothways.compile(other, backend=backend, fullgraph=True)
    for size in SIZES:
        assert_alike(plain, other, compiled, torch.randn(size, device="cuda"))


@pytest.mark.parametrize("kind", ["gru", "tanh", "relu"])
def test_a_state_comes_from_the_caller(kind, backend):
    plain, other = readers(kind)
    compiled = bothways.compile(other, backend=backend, fullgraph=True)
    for size in SIZES[:4]:
        state = torch.randn(1, size[1], 6, device="cuda")
        assert_alike(plain, other, compiled, torch.randn(size, device="cuda"), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype, backend):
    plain, other = (module.to(dtype) for module in readers("lstm"))
    compiled = bothways.compile(other, backend=backend)
    for size in SIZES:
        x = torch.randn(size, device="cuda", dtype=dtype)
        assert_alike(plain, other, compiled, x, tol=1e-6 if dtype is torch.float64 else 3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind, dtype, backend):
    plain, other = readers(kind)
    compiled = bothways.compile(other, backend=backend, fullgraph=dtype is torch.float16)
    for size in SIZES:
        with torch.autocast("cuda", dtype):
            assert_alike(plain, other, compiled, torch.randn(size, device="cuda"), tol=3e-2)


def test_autocast_inside(backend):
    plain, other = readers("gru")

    def program(module, x):
        with torch.autocast("cuda", torch.float16):
            first, *others = module(x)
        return first.float() * 3, *others

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for size in SIZES:
        x = torch.randn(size, device="cuda")
        expected = run(plain, lambda x: program(plain, x), x)
        found = run(other, lambda x: compiled(other, x), x)
        for name, value in expected.items():
            assert (differs := difference(value, found[name], tol=3e-2)) is None, f"{name}: {differs}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_in_eval_mode_is_refused_as_in_eager(kind, backend):
    plain, other = (module.eval() for module in readers(kind))
    compiled = bothways.compile(other, backend=backend, fullgraph=True)
    x = torch.randn(5, 3, 4, device="cuda")
    assert_alike(plain, other, compiled, x, backward=False)
    for call in (plain, compiled):
        with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
            call(x.clone().requires_grad_())[0].sum().backward()
    with torch.backends.cudnn.flags(enabled=False):  # PyTorch's own cells have gradients there
        assert_alike(plain, other, compiled, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [True, "auto"])
def test_steps_stay_right_where_graphs_are_replayed(kind, wanted, backend):
    def trained(model, compiler):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = sum(one.square().mean() for one in model(x))
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, generator = compiler(step), torch.Generator("cuda").manual_seed(1)
        torch.manual_seed(2)
        found = [step(torch.randn(5, 3, 4, device="cuda", generator=generator)) for _ in range(12)]
        return [*found, *model.parameters()]

    plain, other = readers(kind, num_layers=2, dropout=0.3)
    expected = trained(plain, lambda step: step)
    with graphs(wanted):
        found = trained(other, lambda step: bothways.compile(step, backend=backend, fullgraph=True))
    assert (differs := difference(expected, found, tol=5e-3)) is None, differs


def test_calls_without_gradients_where_graphs_are_replayed(backend):
    plain, other = (module.eval() for module in readers("lstm", num_layers=2))
    with graphs(), torch.no_grad():
        compiled = bothways.compile(other, backend=backend, fullgraph=True)
        for _ in range(6):
            assert_alike(plain, other, compiled, torch.randn(5, 3, 4, device="cuda"), backward=False)


def test_weights_are_put_together_in_a_call(backend):
    def program(module, x):
        module.layer.flatten_parameters()
        return module(x)

    plain, other = readers("lstm")
    compiled = bothways.compile(program, backend=backend)
    for size in SIZES:
        x = torch.randn(size, device="cuda")
        expected = run(plain, lambda x: program(plain, x), x)
        found = run(other, lambda x: compiled(other, x), x)
        for name, value in expected.items():
            assert (differs := difference(value, found[name], tol=TOLERANCE)) is None, f"{name}: {differs}"
