"""Recurrent layers as one operation, as cuDNN has them: it reads where the weights lie, which no thin tensor tells.

What the layers give is known without that, and ATen runs them between what is compiled. Here the CPU's are such, too.
"""

import contextlib
import copy

import pytest
import torch
from agreeing import agree
from stepping import BACKENDS
from stepping import agree as agree_in_steps
from torch import nn

import bothways
from bothways.capture.shapes import fakes, outlines
from bothways.fake import thin_outline

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def layers_are_one(monkeypatch):
    monkeypatch.setattr(outlines, "OF_A_LIBRARY", frozenset(["cpu", "cuda"]))
    # The last bit of a number is seen in others' third digit.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


class Reader(nn.Module):
    """A layer among operations that become kernels."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(4, 6, **options)
        width = (options.get("proj_size") or 6) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)

    def forward(self, x, state=None):
        out, last = self.layer(x.sin(), state)
        last = last if isinstance(last, tuple) else (last,)
        return self.head(out).tanh() * 2, [one.exp() + 1 for one in last]


OPTIONS = {
    "plain": {},
    "two_ways": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "dropping": {"dropout": 0.5, "num_layers": 2},
    "without_biases": {"bias": False, "nonlinearity": "relu"},
    "projecting": {"proj_size": 2, "bidirectional": True},
}


def options_for(kind, name):
    options = dict(OPTIONS[name])
    if kind is not nn.RNN:
        options.pop("nonlinearity", None)
    if kind is not nn.LSTM:
        options.pop("proj_size", None)
    return options


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer_in_a_module(name, kind, backend):
    module = Reader(kind, **options_for(kind, name))

    def observe(function, size):
        module.zero_grad()
        torch.manual_seed(3)
        x = torch.randn(size, requires_grad=True)
        out, last = function(module, x)
        (out.square().sum() + sum(one.sum() for one in last)).backward()
        return {
            "results": (out, last), "strides": [one.stride() for one in (out, *last)], "gradient": x.grad,
            "gradients": [parameter.grad for parameter in module.parameters()],
        }  # fmt: skip

    sizes = (3, 5, 4), (3, 5, 4), (5, 4), (7, 5, 4), (2, 8, 4)  # the third is one sequence alone
    agree(lambda module, x: module(x), observe, *sizes, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_a_layer_runs_between_what_is_compiled(kind, backend):
    module = Reader(kind).eval()
    compiled = bothways.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(3, 5, 4)
    for mode in (torch.no_grad, torch.inference_mode, contextlib.nullcontext):
        with mode():
            expected, found = module(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found[0].requires_grad is expected[0].requires_grad
    state = torch.randn(1, 5, 6)
    state = (state, state.cos()) if kind is nn.LSTM else state
    torch.testing.assert_close(compiled(x, state), module(x, state))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_a_training_step(kind, backend):
    def make():
        model = Reader(kind, num_layers=2, dropout=0.25)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            out, last = model(x)
            loss = out.square().mean() + last[0].mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    agree_in_steps(make, [(torch.randn(3, 5, 4),) for _ in range(4)], backend, tol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused_as_in_eager(backend):
    layer = nn.LSTM(4, 6)
    compiled = bothways.compile(copy.deepcopy(layer), backend=backend)
    states = torch.zeros(1, 4, 6), torch.zeros(1, 5, 6).double(), torch.zeros(5, 6)
    for state in states:
        for _ in range(2):
            raised = []
            for call in (layer, compiled):
                with pytest.raises(Exception) as caught:  # noqa: PT011
                    call(torch.randn(3, 5, 4), (state, state))
                raised.append((caught.type, str(caught.value).partition("\n")[0]))
            assert raised[0] == raised[1]


# On a GPU, of which only the outlines are here ------------------------------------------------------------------------


def on_a_gpu(*shape, dtype=torch.float32):
    strides = torch.empty(shape, device="meta").stride()
    return fakes.Fake(thin_outline(shape, strides, dtype, GPU), GPU)


@contextlib.contextmanager
def casting(dtype):
    """As inside of ``torch.autocast("cuda")``, which does nothing where there is none."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


def layer_on_a_gpu(dtype=torch.float32, of_weights=torch.float32):
    weights = [on_a_gpu(*shape, dtype=of_weights) for shape in ((24, 4), (24, 6), (24,), (24,))]
    state = on_a_gpu(1, 5, 6, dtype=dtype), on_a_gpu(1, 5, 6, dtype=dtype)
    args = on_a_gpu(3, 5, 4, dtype=dtype), state, weights, True, 1, 0.0, True, False, False
    try:
        return fakes.run(torch._VF.lstm, args, {})
    except fakes.FakeFailure:  # where the library is, and wants data
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_what_a_layer_on_a_gpu_gives(dtype):
    found = layer_on_a_gpu(dtype, dtype)
    assert isinstance(found, fakes.AsCaptured)
    assert [one.shape for one in found.result] == [(3, 5, 6), (1, 5, 6), (1, 5, 6)]
    assert {one.dtype for one in found.result} == {dtype} and {one.device for one in found.result} == {GPU}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_autocast_casts_to_float16(dtype):
    with casting(torch.float16):
        found = layer_on_a_gpu(dtype)
    assert isinstance(found, fakes.AsCaptured) and {one.dtype for one in found.result} == {torch.float16}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_what_autocast_makes_of_other_dtypes_is_not_foretold(dtype):
    with casting(dtype if dtype is torch.bfloat16 else torch.float16):
        found = layer_on_a_gpu(torch.float32 if dtype is torch.bfloat16 else dtype)
    assert not isinstance(found, fakes.AsCaptured)


def test_a_state_of_another_dtype_is_not_foretold():
    assert not isinstance(layer_on_a_gpu(torch.float64), fakes.AsCaptured)
