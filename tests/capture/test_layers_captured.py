"""Every layer of ``torch.nn`` is captured whole, in training and in evaluation, and is what eager is."""

import copy
import inspect

import pytest
import torch
from nn_layers import LAYERS, Row, needs_grad
from torch import nn

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, CompileCounterWithBackend, same

# Classes that are no layers: bases, containers without a forward, and what runs on several devices.
NOT_LAYERS = frozenset(
    "Container Module ModuleDict ModuleList ParameterDict ParameterList RNNBase RNNCellBase DataParallel "
    "SyncBatchNorm NLLLoss2d".split()
)
# Layers whose intermediate shapes depend on data, or that resize tensors: plain Python, the same results.
BREAKS = {
    "AdaptiveLogSoftmaxWithLoss": Row(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3]), lambda: (needs_grad(3, 4), torch.tensor([0, 5, 9]))
    ),
    "CrossMapLRN2d": Row(lambda: nn.CrossMapLRN2d(2), lambda: (needs_grad(2, 4, 3, 3),)),
}
LAZY = {
    "LazyLinear": Row(lambda: nn.LazyLinear(3)),
    **{f"LazyConv{n}d": Row(lambda n=n: getattr(nn, f"LazyConv{n}d")(2, 2)) for n in (1, 2, 3)},
    **{f"LazyConvTranspose{n}d": Row(lambda n=n: getattr(nn, f"LazyConvTranspose{n}d")(2, 2)) for n in (1, 2, 3)},
    **{f"LazyBatchNorm{n}d": Row(getattr(nn, f"LazyBatchNorm{n}d")) for n in (1, 2, 3)},
    **{f"LazyInstanceNorm{n}d": Row(getattr(nn, f"LazyInstanceNorm{n}d")) for n in (1, 2, 3)},
}


def test_the_table_is_complete():
    exported = {name for name in dir(nn) if inspect.isclass(getattr(nn, name))}
    modules = {name for name in exported if issubclass(getattr(nn, name), nn.Module)}
    assert modules - NOT_LAYERS == {*LAYERS, *BREAKS, *LAZY} & modules
    assert {*LAYERS, *BREAKS, *LAZY} <= modules | {"LinearCrossEntropyLoss"}  # which PyTorch 2.12 does not have


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [tensor for item in tree for tensor in tensors(item)] if isinstance(tree, (tuple, list)) else []


def run(call, module, arguments):
    """Outputs, gradients of everything, and the parameters and statistics afterwards."""
    torch.manual_seed(3)
    out = call(*arguments)
    # cuDNN's recurrent layers have gradients in training alone.
    has_gradients = module.training or not (isinstance(module, nn.RNNBase) and tensors(out)[0].is_cuda)
    differentiable = [tensor for tensor in tensors(out) if tensor.requires_grad and has_gradients]
    gradients = None
    if differentiable:
        weights = [torch.arange(1.0, tensor.numel() + 1).reshape(tensor.shape) for tensor in differentiable]
        leaves = [t for t in [*tensors(arguments), *module.parameters()] if t.requires_grad]
        gradients = torch.autograd.grad(differentiable, leaves, weights, allow_unused=True)
    return out, gradients, copy.deepcopy(module.state_dict())


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, backend):
    row = LAYERS[name]
    torch.manual_seed(0)
    plain = row.make()
    other = copy.deepcopy(plain)
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(other, backend=counter, fullgraph=True)
    modes = (True, False, True, False)
    for mode in modes:
        plain.train(mode), other.train(mode)
        expected = run(plain, plain, row.arguments())
        assert same(run(compiled, other, row.arguments()), expected)
    assert counter.frame_count <= 2  # one for each mode, at most


@pytest.mark.parametrize("name", BREAKS)
def test_layers_that_break(name):
    row = BREAKS[name]
    torch.manual_seed(0)
    plain = row.make()
    other = copy.deepcopy(plain)
    compiled = bothways.compile(other, backend="eager")
    assert same(run(compiled, other, row.arguments()), run(plain, plain, row.arguments()))
    with pytest.raises(Unsupported):
        bothways.compile(other, fullgraph=True)(*row.arguments())


@pytest.mark.parametrize("name", LAZY)
def test_lazy_layers_find_their_sizes_in_the_first_call(name):
    dimensions = int(name[-2]) if name[-1] == "d" else 0
    arguments = (torch.ones(4, 3, *[4] * dimensions),)
    torch.manual_seed(0)
    plain = LAZY[name].make()
    expected = [run(plain, plain, arguments) for _ in range(3)]
    torch.manual_seed(0)
    other = LAZY[name].make()
    counter = CompileCounter()
    compiled = bothways.compile(other, backend=counter, fullgraph=True)
    for results in expected:
        torch.manual_seed(0)
        assert same(run(compiled, other, arguments), results)
    assert type(other) is type(plain)
    assert counter.frame_count == 1  # once the sizes are known


def test_a_loss_that_refuses_its_data_raises_as_eager_does():
    loss = nn.GaussianNLLLoss()
    compiled = bothways.compile(loss, backend="native", fullgraph=True)
    x = torch.ones(3)
    assert same(compiled(x, x + 1, x), loss(x, x + 1, x))
    for _ in range(2):
        with pytest.raises(ValueError, match="var has negative"):
            compiled(x, x + 1, -x)


class MakesItsOwn(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """A lazy module that has no parameters at all before its first call, and stays of its class."""

    def initialize_parameters(self, x):
        self.scale = nn.Parameter(torch.full(x.shape, 2.0))

    def forward(self, x):
        return x * self.scale


def test_lazy_modules_inside_others():
    counter = CompileCounter()
    module = nn.Sequential(MakesItsOwn(), nn.LazyLinear(3))
    compiled = bothways.compile(module, backend=counter, fullgraph=True)
    x = torch.ones(2, 4)
    first = compiled(x)
    assert counter.frame_count == 0 and same(first, module(x))
    assert same(compiled(x), first) and same(compiled(x), first)
    assert counter.frame_count == 1


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_with_both_of_its_masks(training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    compiled = bothways.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(2, 4, 8)
        options = {"mask": causal, "src_key_padding_mask": padding, "is_causal": True}
        assert same(compiled(x, **options), model(x, **options))
