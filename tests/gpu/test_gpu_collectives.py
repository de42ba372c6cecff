"""Collectives inside of compiled steps on a GPU: with a group of one they are recorded with the rest, as one CUDA graph.

Each test starts a process of its own, in which a group can be made and destroyed.
"""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed
from pythons import run_python

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_nccl_available(), reason="no NCCL here"
    ),
    pytest.mark.timeout(300),
]

BEGIN = """
import sys
import torch, torch.distributed as dist
from torch import nn
import bothways

torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)


def trained(compiled, calls=8):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

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

    run = bothways.compile(step, fullgraph=True) if compiled else step
    generator = torch.Generator("cuda").manual_seed(1)
    batches = [torch.randn(32, 64, device="cuda", generator=generator) for _ in range(calls)]
    losses = []
    for number, batch in enumerate(batches):
        losses.append(run(batch))
        if number == 0 and compiled:
            print("first", flush=True)
    return losses, [parameter.detach() for parameter in model.parameters()], run
"""

ONE_GRAPH = """
expected, theirs, _ = trained(False)
losses, ours, run = trained(True)
torch.testing.assert_close(losses, expected)
torch.testing.assert_close(ours, theirs)
replays = [one for each in bothways.history(run) for one in each.replays]
print(replays)
assert [one.recordings for one in replays if one.recordings], replays
kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
batch = torch.randn(32, 64, device="cuda")
run(batch)
torch.cuda.synchronize()
with torch.profiler.profile(activities=kinds, acc_events=True) as recorded:
    run(batch)
    torch.cuda.synchronize()
host = [event.name for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CPU]
print(sorted(set(host)))
print([ (event.name, event.device_type) for event in recorded.events() if 'nccl' in event.name.lower()][:10])
assert host.count("cudaGraphLaunch") == 1, host
assert not any(name.startswith("nccl:") or "ncclDevKernel" in name for name in host), host
dist.destroy_process_group()
print("done")
"""


def run_alone(text, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BEGIN + text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NCCL_SOCKET_IFNAME": "lo"}
    run_python([script, str(tmp_path / "store")], env=environment, check=True)


def test_a_step_that_sums_gradients_is_one_cuda_graph(tmp_path):
    run_alone(ONE_GRAPH, tmp_path)
