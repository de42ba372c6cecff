"""Images between convolutions lie pixel by pixel in kernels' programs, and the caller cannot tell."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree
from torch import nn

import bothways
from bothways.grad.tracing.joint import trace_joint
from bothways.testing import same


def plain_and_compiled(build, *inputs, calls=2, **options):
    """Results with their layouts, gradients of inputs and parameters, statistics, random state: the same both ways."""
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = build()
        function = bothways.compile(model, fullgraph=True, **options) if is_compiled else model
        torch.manual_seed(1)
        seen = []
        for _ in range(calls):
            given = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
            result = function(*given)
            results = result if isinstance(result, tuple) else (result,)
            differentiable = [value for value in results if value.requires_grad]
            if differentiable:
                sum((value * value).sum() for value in differentiable).backward()
            gradients = [value.grad for value in (*given, *model.parameters())]
            tensors = [*results, *gradients, *model.buffers()]
            seen += [value if value is None else value.detach().clone() for value in tensors]
            seen += [None if value is None else (value.stride(), value.shape) for value in tensors]
            seen.append(torch.rand(1))
            model.zero_grad()
        found.append(seen)
    plain, compiled = found
    for index, (own, other) in enumerate(zip(plain, compiled, strict=True)):
        if isinstance(own, torch.Tensor):
            torch.testing.assert_close(other, own, rtol=1e-3, atol=1e-4, msg=lambda text: f"{index}: {text}")
        else:
            assert own == other, index


def conv(a, b, kernel=3, **options):
    return nn.Conv2d(a, b, kernel, padding=kernel // 2, **options)


class Returning(nn.Module):
    """A model of two convolutions and what is done between and after them."""

    def __init__(self, body, channels=(3, 8, 8)):
        super().__init__()
        self.body = body
        a, b, c = channels
        self.first, self.second, self.norm = conv(a, b), conv(b, c), nn.BatchNorm2d(b)

    def forward(self, x):
        return self.body(self, x)


def dropped(x):
    return F.dropout(x, 0.3, True)


BY_PIXEL = torch.channels_last

BODIES = {
    "chain": lambda m, x: m.second(m.norm(m.first(x)).relu()),
    "flatten": lambda m, x: m.second(m.first(x).relu()).flatten(1),
    "view": lambda m, x: m.second(m.first(x).relu()).view(x.shape[0], -1),
    "view of channels": lambda m, x: m.second(m.first(x)).view(x.shape[0], 4, 2, -1).sum(2),
    "mean": lambda m, x: m.second(F.max_pool2d(m.first(x), 2)).mean((2, 3)),
    "average pool": lambda m, x: F.adaptive_avg_pool2d(m.second(F.avg_pool2d(m.first(x), 2)), 2),
    "both": lambda m, x: (m.first(x), m.second(m.first(x).tanh())),
    "views of each other": lambda m, x: (lambda y: (y, y.reshape(-1), y[0]))(m.second(m.first(x))),
    "residual": lambda m, x: (lambda y: y + m.second(y.relu()))(m.first(x)),
    "dropout": lambda m, x: m.second(F.dropout(m.first(x), 0.4, True)),
    "dropout of channels": lambda m, x: m.second(F.dropout2d(m.first(x), 0.4, True)),
    "noise": lambda m, x: m.second(m.first(x) + torch.randn_like(m.first(x))),
    "rand_like and bernoulli": lambda m, x: m.second(m.first(x) * torch.rand_like(m.first(x)).bernoulli()),
    "in place": lambda m, x: m.second(F.relu(m.first(x).mul_(2), inplace=True)),
    "a slice is written": lambda m, x: (lambda y: (y[:, 0].zero_(), m.second(y))[1])(m.first(x) * 1),
    "permuted": lambda m, x: m.second(m.first(x)).permute(0, 2, 3, 1) * 2,
    "permuted and dropped": lambda m, x: dropped(m.second(m.first(x)).permute(0, 2, 3, 1)),
    "permuted, back and dropped": lambda m, x: dropped(m.first(x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)),
    "user's own format": lambda m, x: m.second(m.first(x).to(memory_format=BY_PIXEL)),
    "user's own format and dropout": lambda m, x: dropped(m.first(x).contiguous(memory_format=BY_PIXEL)),
    "contiguous": lambda m, x: m.second(m.first(x).contiguous()).contiguous(),
    "as_strided": lambda m, x: m.second(m.first(x)).as_strided((2, 3), (1, 2)),
    "unfold": lambda m, x: F.unfold(m.second(m.first(x)), 2),
    "pixel shuffle": lambda m, x: F.pixel_shuffle(m.second(m.first(x)), 2),
    "interpolate": lambda m, x: m.second(F.interpolate(m.first(x), scale_factor=2)),
    "bilinear": lambda m, x: F.interpolate(m.second(m.first(x)), size=(5, 5), mode="bilinear"),
    "pad": lambda m, x: m.second(F.pad(m.first(x), (1, 2, 0, 1))),
    "cat": lambda m, x: m.second(torch.cat([m.first(x)[:, :4], m.first(x)[:, 4:]], 1)),
    "stack": lambda m, x: torch.stack([m.first(x), m.second(m.first(x))]),
    "chunks": lambda m, x: tuple(m.second(m.first(x)).chunk(2, 1)),
    "argmax": lambda m, x: m.second(m.first(x)).argmax(1).float(),
    "flat argmax": lambda m, x: m.second(m.first(x)).argmax().float(),
    "pool with indices": lambda m, x: F.max_pool2d(m.second(m.first(x)), 2, return_indices=True)[0],
    "softmax": lambda m, x: m.second(m.first(x)).softmax(1),
    "group norm": lambda m, x: m.second(F.group_norm(m.first(x), 2)),
    "layer norm": lambda m, x: m.second(F.layer_norm(m.first(x), m.first(x).shape[1:])),
    "cumulated": lambda m, x: m.second(m.first(x).cumsum(2)),
    "masked": lambda m, x: (lambda y: y * (y > 0).to(y.dtype))(m.second(m.first(x))),
    "matrix product": lambda m, x: m.second(m.first(x)) @ torch.ones(6, 2),
    "norm": lambda m, x: m.second(m.first(x)).norm(),
    "no gradients": lambda m, x: m.second(m.first(x).detach()),
    "image itself": lambda m, x: (x, m.first(x), x * 2),
}  # fmt: skip


USUAL = (
    "chain", "view", "mean", "both", "views of each other", "residual", "dropout", "noise", "a slice is written",
    "permuted, back and dropped", "user's own format and dropout", "as_strided", "chunks", "pool with indices",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in BODIES]
)
def test_whatever_is_done_with_images_comes_out_as_it_was(name):
    plain_and_compiled(lambda: Returning(BODIES[name]), torch.randn(2, 3, 6, 6, requires_grad=True))


@pytest.mark.parametrize(
    "image",
    [
        torch.randn(2, 3, 6, 6),
        torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_(),
        torch.randn(2, 6, 6, 3).permute(0, 3, 1, 2),
        torch.randn(2, 3, 12, 12)[:, :, ::2, ::2],
        torch.randn(1, 3, 6, 6).expand(4, 3, 6, 6),
        torch.randn(2, 3, 1, 6),
        torch.randn(2, 3, 1, 1),
        torch.randn(1, 3, 6, 6, requires_grad=True),
    ],
    ids="plain channels_last permuted strided expanded line point one".split(),
)
@pytest.mark.parametrize(
    "name", ["dropout", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chain", "both"))]
)
def test_images_of_all_kinds(name, image):
    plain_and_compiled(lambda: Returning(BODIES[name]), image)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(conv(1, 8), nn.ReLU(), conv(8, 4)),
        lambda: nn.Sequential(conv(4, 8, 1), nn.ReLU(), conv(8, 4, 1)),
        lambda: nn.Sequential(conv(4, 4, groups=4), nn.ReLU(), conv(4, 8, groups=2)),
        lambda: nn.Sequential(conv(4, 8, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2), conv(4, 2)),
        lambda: nn.Sequential(conv(4, 8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3), nn.BatchNorm2d(4), conv(4, 4)),
        lambda: nn.Sequential(conv(4, 8, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), conv(8, 8)),
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, dilation=2), nn.LeakyReLU(), nn.Conv2d(6, 6, (1, 3))),
        lambda: nn.Sequential(conv(4, 8), nn.ReLU(), nn.Flatten(2), nn.Conv1d(8, 4, 3)),
        lambda: nn.Sequential(conv(4, 8), nn.PReLU(), nn.Dropout(0.2), conv(8, 4), nn.Sigmoid()),
    ],
)
def test_convolutions_of_all_kinds(model):
    channels = model()[0].in_channels
    plain_and_compiled(model, torch.randn(2, channels, 8, 8, requires_grad=True))


def is_turned(function, *inputs):
    expected = [value.detach() for value in function(*inputs)]
    return trace_joint(function, inputs, True, expected=expected).is_turned


def test_who_lays_out_images_is_left_alone():
    x, weight, point = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4, 3, 1, 1)
    assert is_turned(lambda x, w: (F.conv2d(x, w).relu(),), x, weight)
    assert not is_turned(lambda x, w: (F.conv2d(x, w).relu(),), x.contiguous(memory_format=BY_PIXEL), weight)
    assert not is_turned(lambda x, w: (F.conv2d(x, w).view(-1),), x, weight)
    assert not is_turned(lambda x, w: (F.conv2d(x, w).relu(),), x, point)
    assert not is_turned(lambda x, w: (x * 2, w.relu()), x, weight)


def test_an_image_of_one_channel_begins_a_chain_that_is_turned_once():
    x, first, second = torch.randn(2, 1, 6, 6), torch.randn(8, 1, 3, 3), torch.randn(4, 8, 3, 3)

    def chain(x, first, second):
        return (F.conv2d(F.conv2d(x, first).relu(), second),)

    expected = [value.detach() for value in chain(x, first, second)]
    joint = trace_joint(chain, (x, first.requires_grad_(), second.requires_grad_()), True, expected=expected)
    nodes = [node for node in joint.recorder.graph.nodes if node.op == "call_function"]
    between = [node for node in nodes if node.target is torch.ops.aten.relu.default]
    clones = [node for node in nodes if node.target is torch.ops.aten.clone.default]
    assert all(node.meta["val"].is_contiguous(memory_format=BY_PIXEL) for node in between)
    assert not any(set(node.all_input_nodes) & set(between) for node in clones)


def test_an_image_of_one_channel_and_its_weights_have_gradients_that_lie_as_they_do():
    plain_and_compiled(lambda: Returning(BODIES["chain"], (1, 8, 8)), torch.randn(2, 1, 6, 6, requires_grad=True))
    plain_and_compiled(lambda: Returning(BODIES["chain"], (1, 8, 1)), torch.randn(2, 1, 6, 6))
    plain_and_compiled(lambda: Returning(BODIES["chain"], (1, 1, 1)), torch.randn(1, 1, 6, 6, requires_grad=True))


def test_batches_of_changing_sizes_have_two_programs():
    torch.manual_seed(0)
    model = Returning(BODIES["chain"])
    compiled = bothways.compile(lambda x: model(x), fullgraph=True)
    for size in (2, 3, 4, 7, 5):
        x = torch.randn(size, 3, 6, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, found = model(x), compiled(y)
        expected.square().sum().backward()
        found.square().sum().backward()
        assert same(found, expected, tol=1e-4) and found.stride() == expected.stride()
        assert same(y.grad, x.grad, tol=1e-4) and y.grad.stride() == x.grad.stride()
    assert len(bothways.history(compiled)) <= 2


def test_gradients_of_other_layouts():
    model = Returning(BODIES["chain"])
    compiled = bothways.compile(model, fullgraph=True)
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    layouts = (torch.randn(2, 8, 6, 6), torch.randn(2, 6, 6, 8).permute(0, 3, 1, 2), torch.randn(1).expand(2, 8, 6, 6))
    for gradient in layouts:
        own, other = (torch.autograd.grad(call(x), x, gradient)[0] for call in (compiled, model))
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
        assert own.stride() == other.stride()


def test_second_derivatives():
    model = nn.Sequential(conv(3, 4), nn.Tanh(), conv(4, 4), nn.Tanh())
    compiled = bothways.compile(model, fullgraph=True)
    x = torch.randn(2, 3, 5, 5, requires_grad=True)

    def penalty(call):
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [x, *model.parameters()], allow_unused=True)

    for _ in range(2):
        for own, other in zip(penalty(compiled), penalty(model), strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)


# Results that lie both ways: PyTorch takes them for what their strides say, and lays out so what it makes of them.
BOTH_WAYS = {
    "one channel": lambda: nn.Conv2d(8, 1, 3, padding=1),
    "one pixel": lambda: nn.Conv2d(8, 4, 8),
    "pooled": lambda: nn.MaxPool2d(8),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("last", BOTH_WAYS.values(), ids=BOTH_WAYS)
def test_what_lies_both_ways_is_taken_as_before_by_what_comes_behind(last, gradients, dynamic):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), last())

    def observe(function, size):
        with torch.set_grad_enabled(gradients):
            result = function(torch.linspace(-1, 1, size * 192).view(size, 3, 8, 8))
            behind = F.conv_transpose2d(result, torch.ones(result.shape[1], 2, 3, 3))
            return {"result": result, "strides": (result.stride(), behind.stride()), "flat": behind.view(size, -1)}

    options = {"fullgraph": True, "dynamic": dynamic, "within": {"kernels_for_small_graphs": True}}
    agree(model, observe, 2, 2, 3, backend="native", tol=1e-4, **options)


def test_the_gradient_of_a_kernel_for_one_channel_lies_as_before():
    def step(model, x):
        model(x).square().mean().backward()

    def observe(function, size):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 4))
        function(model, torch.linspace(-1, 1, size * 64).view(size, 1, 8, 8))
        gradients = [parameter.grad for parameter in model.parameters()]
        return {"gradients": gradients, "strides": [gradient.stride() for gradient in gradients]}

    options = {"fullgraph": True, "within": {"kernels_for_small_graphs": True}}
    agree(step, observe, 2, 2, 3, backend="native", tol=1e-4, **options)
