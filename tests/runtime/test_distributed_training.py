"""DistributedDataParallel around a compiled module, and compiled: two processes train as plain ones do.

The processes are started here and talk over the loopback address. What they have after five steps is compared with
what the same two have with plain PyTorch, parameter by parameter.
"""

import itertools
import os
import pickle
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed
from pythons import run_python

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo here"
    ),
    pytest.mark.timeout(600),
    pytest.mark.every_backend,  # all cases are run at once
]

WAYS = ("compile(DDP)", "DDP(compile)")
BACKENDS = ("aot_eager", "native")
CAPTURES = ("none", "whole")  # how the backward is captured: a name that the workers know
SYNCED = ("synced", "no_sync")
CASES = [
    *(("plain", "eager", "none", synced) for synced in SYNCED),
    *itertools.product(WAYS, BACKENDS, CAPTURES, SYNCED),
    *(("by hand", backend) for backend in ("eager", *BACKENDS)),
]

# What each of the two processes runs, case after case; the first of them writes down what it comes to.
WORKER = """
import contextlib, datetime, os, pickle, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import torch._dynamo  # which optimizers load
import bothways

port, cases, path = sys.argv[1:]
second = os.fork()  # before there are any threads
rank = 0 if second else 1
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
    timeout=datetime.timedelta(seconds=240),
)
bothways.config.kernels_for_small_graphs = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


WAYS = {
    "plain": lambda model, backend: DDP(model),
    "compile(DDP)": lambda model, backend: bothways.compile(DDP(model), backend=backend),
    "DDP(compile)": lambda model, backend: DDP(bothways.compile(model, backend=backend)),
}
CAPTURES = {"none": contextlib.nullcontext, "whole": lambda: bothways.autograd.capture(bothways.compile)}


def trained(way, backend, capture, synced):
    torch.manual_seed(0)
    model = Model()
    run = WAYS[way](model, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(5):
        optimizer.zero_grad()
        batches = [torch.randn(6, 8, generator=generator) for _ in range(2)]
        with run.no_sync() if synced == "no_sync" else contextlib.nullcontext(), CAPTURES[capture]():
            run(batches[0]).square().mean().backward()
        with CAPTURES[capture]():
            run(batches[1]).square().mean().backward()
        optimizer.step()
    compiled = {"plain": None, "compile(DDP)": run, "DDP(compile)": run.module}[way]
    graphs = [] if compiled is None else [one for one in bothways.history(compiled) if one.graph is not None]
    return {name: value.detach() for name, value in model.named_parameters()}, len(graphs)


def by_hand(backend):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

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

    run = step if backend == "eager" else bothways.compile(step, backend=backend)
    generator = torch.Generator().manual_seed(1 + rank)
    losses = [run(torch.randn(6, 8, generator=generator)) for _ in range(5)]
    graphs = [] if run is step else [one for one in bothways.history(run) if one.graph is not None]
    return {"losses": losses, **{name: value.detach() for name, value in model.named_parameters()}}, len(graphs)


results = {}
for case in eval(cases):
    results[case] = by_hand(case[1]) if case[0] == "by hand" else trained(*case)
    bothways.reset()
    if rank == 0:
        with open(path, "wb") as file:
            pickle.dump(results, file)
dist.barrier()
dist.destroy_process_group()
if second:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What two processes come to in each case: the parameters, and the number of graphs."""
    folder = tmp_path_factory.mktemp("workers")
    script, path = folder / "worker.py", folder / "results"
    script.write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    run_python([script, str(free_port()), repr(CASES), path], env=environment, check=True)
    with path.open("rb") as file:
        return pickle.load(file)


@pytest.mark.parametrize("synced", SYNCED)
@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_as_plain_ones_do(way, backend, capture, synced, results):
    expected, _ = results["plain", "eager", "none", synced]
    found, graphs = results[way, backend, capture, synced]
    torch.testing.assert_close(found, expected)
    assert graphs > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_sums_gradients_by_hand(backend, results):
    """What processes tell each other is a part of the step's graph, once the optimizer has made its state."""
    expected, _ = results["by hand", "eager"]
    found, graphs = results["by hand", backend]
    torch.testing.assert_close(found, expected)
    assert graphs > 0
