"""Steps with collectives in them that are replayed: on the CPU, with fake graphs, by gloo, else by NCCL."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from replaying import DEVICE, random, replays
from torch import nn

import bothways

BACKEND = "nccl" if DEVICE == "cuda" else "gloo"

pytestmark = [
    pytest.mark.usefixtures("recorder"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_backend_available(BACKEND), reason=f"no {BACKEND} here"),
]


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def training(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size() * scale
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        return loss

    return step, model


def test_a_whole_step_is_replayed():
    (plain, theirs), (step, ours) = training(1), training(1)
    compiled = bothways.compile(step, fullgraph=True)
    losses = []
    for _ in range(8):
        batch = random(6, 8), torch.randint(0, 4, (6,), device=DEVICE)
        losses.append((compiled(*batch), plain(*batch)))
        gradients = [[parameter.grad for parameter in model.parameters()] for model in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    for found, expected in losses:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-3, atol=1e-5)
    assert replays(compiled).get("forward", 0) >= 4


def test_another_group_is_another_recording():
    step, model = training(1)
    compiled = bothways.compile(step, fullgraph=True)
    batch = random(6, 8), torch.randint(0, 4, (6,), device=DEVICE)
    for _ in range(2):
        for _ in range(6):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            compiled(*batch)
            assert not any(map(torch.equal, before, model.parameters()))
        dist.destroy_process_group()
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    assert len([one for one in bothways.history(compiled) if one.replays and any(r.calls for r in one.replays)]) == 2
