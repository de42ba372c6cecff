"""A compiled step launches no more kernels on a GPU than eager does, and reads nothing back."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Layer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, 4, -1).transpose(1, 2) for part in self.into(self.first(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), 0.1)
        return x + self.narrow(F.gelu(self.wide(self.second(x)), approximate="tanh"))


def convolutions():
    return nn.Sequential(
        *[nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)]
    )


MODELS = {
    # Sums over columns take two passes, which makes them the same at each run.
    "layers of a transformer": (lambda: nn.Sequential(Layer(), Layer()), (2, 16, 64), 2),
    "linear, layer norm, GELU": (
        lambda: nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]),
        (32, 64), 0,
    ),
    # One copy of all statistics, in case the call fails, and one of all counters.
    "convolutions with batch norms": (convolutions, (4, 8, 16, 16), 2),
}  # fmt: skip


def launches(step):
    """How many kernels, copies and fills the device runs for a step, and how often the host waits for it."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds, acc_events=True) as recorded:
        step()
    events = recorded.events()
    device = [
        event
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    waits = [event for event in events if event.name in ("cudaStreamSynchronize", "cudaMemcpy", "aten::item")]
    return len(device), len(waits)


def stepping(model, run, x):
    def step():
        model.zero_grad(set_to_none=True)
        run(x).float().square().mean().backward()

    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_launches_no_more_than_eager(name, dtype):
    make, shape, more = MODELS[name]
    model = make().to("cuda", dtype)
    other = copy.deepcopy(model)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    plain, compiled = stepping(model, model, x), stepping(other, bothways.compile(other, backend="native"), x)
    with bothways.config.patch(cuda_graphs=False):  # a replay is one launch, with copies around it
        for _ in range(3):
            plain()
            compiled()
        (expected, _), (found, waits) = launches(plain), launches(compiled)
    assert found <= expected + more
    assert waits == 0


class Images(nn.Module):
    """What of a ResNet others do not have: kernels of 1x1, statistics of batches, windows."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.small, self.around = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.Conv2d(16, 32, 1, 2, bias=False)
        self.out = nn.Linear(32, 10)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.norm(self.first(images))), 3, 2, 1)
        x = F.relu(self.small(x) + self.around(x))
        return F.cross_entropy(self.out(x.mean((2, 3))), labels)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_whole_step_of_a_model_for_images_is_one_part(form):
    torch.manual_seed(0)
    plain = Images().to("cuda", memory_format=form)
    data = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=form), torch.randint(0, 10, (8,), device="cuda")
    other = copy.deepcopy(plain)
    steps = []
    for model in (plain, other):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(*data)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        steps.append(step)
    compiled = bothways.compile(steps[1], backend="native")
    for _ in range(5):
        torch.testing.assert_close(compiled(), steps[0](), rtol=1e-3, atol=1e-4)
    [piece] = bothways.history(compiled)[-1].outcome.pieces
    assert piece.kernels


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_an_update_of_many_parameters_is_one_launch(cuda_graphs):
    """Gradients lie elsewhere at each step, and the rate changes, which a recording has in the middle of a table."""
    groups, steps = [], []
    for number in range(2):
        torch.manual_seed(0)
        groups.append([nn.Parameter(torch.randn(size + 2, 64, device="cuda")) for size in range(148)])
        optimizer = torch.optim.AdamW(groups[-1], lr=1e-2, foreach=True)
        run = optimizer.step
        if number:
            run = bothways.compile(lambda optimizer=optimizer: optimizer.step(), backend="native")

        def step(turn, group=groups[-1], optimizer=optimizer, run=run):
            torch.manual_seed(turn)
            optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**turn
            for weight in group:
                weight.grad = torch.randn_like(weight)
            return launches(run)

        steps.append(step)
    with bothways.config.patch(cuda_graphs=cuda_graphs):
        for turn in range(10):
            (expected, _), (found, _) = (step(turn) for step in steps)
            for one, other in zip(*groups, strict=True):
                torch.testing.assert_close(other, one)
    assert cuda_graphs or found <= 4 < expected  # with a copy of what is computed of the counters
