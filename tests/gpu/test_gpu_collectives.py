"""Collectives inside of compiled steps on a GPU: in a group of one they are recorded with the rest, as one CUDA graph.

Each test runs a process of its own, in which a group is made and destroyed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_nccl_available(), reason="no NCCL here"
    ),
    pytest.mark.timeout(300),
]

BEGIN = """
import faulthandler, sys, warnings
import torch, torch.distributed as dist
from torch import nn
import bothways

faulthandler.dump_traceback_later(100, exit=True)
warnings.simplefilter("ignore")
torch.cuda.set_device(0)


def begin(backend="nccl"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def batches(count=8):
    generator = torch.Generator("cuda").manual_seed(1)
    return [torch.randn(32, 64, device="cuda", generator=generator) for _ in range(count)]


def step_of():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        total = loss.detach() * 2
        dist.all_reduce(total)
        return total

    return step, model


def compared():  # a compiled step that has come to the same as a plain one, call by call
    plain, theirs = step_of()
    step, ours = step_of()
    compiled = bothways.compile(step, fullgraph=True)
    for batch in batches():
        torch.testing.assert_close(compiled(batch), plain(batch), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=1e-3, atol=1e-5)
    return compiled


def recordings(compiled):
    return [one for each in bothways.history(compiled) for one in each.replays if one.recordings]


def launches(run):
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds, acc_events=True) as recorded:
        run()
        torch.cuda.synchronize()
    names = [event.name for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CPU]
    return [name for name in names if "Launch" in name or name.startswith(("nccl", "c10d"))]
"""

PROGRAMS = {
    "a whole step is one CUDA graph": """
begin()
compiled = compared()
assert len(recordings(compiled)) == 1, [str(one) for each in bothways.history(compiled) for one in each.replays]
[batch] = batches(1)
compiled(batch)
names = launches(lambda: compiled(batch))
assert names.count("cudaGraphLaunch") == 1 and not [name for name in names if name.startswith("c10d")], names
assert len(names) < 10, names
dist.destroy_process_group()
""",
    "it goes on in another group": """
begin()
compiled = compared()
for _ in range(2):
    dist.destroy_process_group()
    begin()
    for batch in batches():
        compiled(batch)
assert len(recordings(compiled)) >= 1
dist.destroy_process_group()
""",
    "each of them": """
begin()

def exchanges(x):
    for _ in range(4):
        half = x[:1] * 2
        dist.all_reduce(half, op=dist.ReduceOp.MAX)
        dist.broadcast(half, 0)
        whole, parts, back = torch.empty_like(half), [torch.empty_like(half)], x[:1] * 0
        dist.all_gather_into_tensor(whole, half)
        dist.all_gather(parts, half + 1)
        dist.reduce_scatter_tensor(back, whole)
        x = torch.tanh(x + back + parts[0]) * torch.sigmoid(whole)
        dist.all_reduce(x, dist.ReduceOp.AVG, dist.group.WORLD)
    return x

compiled = bothways.compile(exchanges, fullgraph=True)
x = torch.randn(4, 1000, device="cuda")
for _ in range(6):
    x = x * 1.1
    torch.testing.assert_close(compiled(x), exchanges(x))
assert len(recordings(compiled)) == 1, [str(one) for each in bothways.history(compiled) for one in each.replays]
dist.destroy_process_group()
""",
    "what is sent is no part of one": """
begin()

def sends(x):
    for _ in range(8):
        x = torch.sin(x) * torch.cos(x) + x.mean()
    other = torch.empty_like(x)
    dist.all_to_all_single(other, x)
    for _ in range(8):
        other = torch.sin(other) * torch.cos(other) + other.mean()
    return other

compiled = bothways.compile(sends, fullgraph=True)
for _ in range(6):
    x = torch.randn(4, 1000, device="cuda")
    torch.testing.assert_close(compiled(x), sends(x))
dist.destroy_process_group()
""",
    "gloo is waited for between two graphs": """
begin("gloo")
compiled = compared()
dist.destroy_process_group()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_collectives(name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BEGIN + PROGRAMS[name])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
