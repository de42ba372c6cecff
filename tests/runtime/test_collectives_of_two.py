"""Two processes whose compiled functions tell each other something: results, and how often, are plain Python's.

The processes are started once and go through all programs of ``collective_programs.py``.
"""

import json
import os
from pathlib import Path

import pytest
import torch.distributed
from collective_programs import PROGRAMS
from pythons import run_python

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("eager", "aot_eager", "native")

pytestmark = [
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo here"
    ),
    pytest.mark.timeout(600),
    pytest.mark.every_backend,  # all cases are run at once
]

# What each of the two processes runs. Both write down what differs, by program and backend.
WORKER = """
import datetime, json, os, sys, warnings
import torch, torch.distributed as dist
import torch._dynamo  # which optimizers load
import bothways
from collective_programs import PROGRAMS

folder, backends = sys.argv[1], sys.argv[2].split()
second = os.fork()  # before there are any threads
rank = 0 if second else 1
torch.set_num_threads(1)
warnings.simplefilter("ignore")
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=240)
)
bothways.config.kernels_for_small_graphs = True


def called(run):
    results = []
    for step in range(4):
        x = torch.arange(6.0).reshape(2, 3) + 10 * rank + step
        before = dist.group.WORLD._get_sequence_number_for_group()
        found = run(x)
        results.append((found, x, dist.group.WORLD._get_sequence_number_for_group() - before))
    return results


differ = {}
for make in PROGRAMS:
    expected = called(make(rank))
    for backend in backends:
        compiled = bothways.compile(make(rank), backend=backend)
        try:
            torch.testing.assert_close(called(compiled), expected)
            graphs = [one for one in bothways.history(compiled) if one.graph is not None]
            assert graphs, "nothing was compiled"
            differ[f"{make.__name__} {backend}"] = ""
        except AssertionError as error:
            differ[f"{make.__name__} {backend}"] = str(error) or "differs"
        bothways.reset()
with open(f"{folder}/{rank}", "w") as file:
    json.dump(differ, file)
dist.barrier()
dist.destroy_process_group()
if second:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
"""


@pytest.fixture(scope="module")
def differ(tmp_path_factory):
    """What differs in each of the two processes, by program and backend."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "worker.py").write_text(WORKER)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    run_python([folder / "worker.py", folder, " ".join(BACKENDS)], env=environment, check=True)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", PROGRAMS)
def test_two_processes_tell_each_other_what_plain_ones_do(make, backend, differ):
    assert [one[f"{make.__name__} {backend}"] for one in differ] == ["", ""]
