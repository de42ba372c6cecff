"""Kernels for NVIDIA GPUs whose sizes are known only when they run, through the shim on a CPU."""

import re

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost

import bothways
from bothways.backends import native
from bothways.lower.ir import builder


@pytest.fixture
def texts(monkeypatch):
    """What ``native`` compiles is compiled as for a GPU; the CUDA texts come here."""
    made, found = builder.Builder.__init__, []

    def init(self, device):
        made(self, device)
        self.on_gpu = True

    class Dialect(CudaOnHost):
        def spell(self, routines, names):
            spelled = super().spell(routines, names)
            found.append(str(spelled.text))
            return spelled

    monkeypatch.setattr(builder.Builder, "__init__", init)
    monkeypatch.setattr(native, "_dialect_of", lambda tensors: (Dialect(), ""))
    return found


ROWS = {
    "softmax of a product": lambda x: torch.softmax(x @ x.T, -1) + 1,
    "softmax": lambda x: torch.softmax(x.T * 2, -1) * 3,
    "norm of a product": lambda x: F.layer_norm(x @ x.T, (x.shape[0],)),
    "spread": lambda x: (x @ x.T).std(-1) + x.sum(-1),
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_any_length_are_few_lines_for_a_thread(rows, texts):
    compiled = bothways.compile(ROWS[rows], backend="native", dynamic=True)
    for length in (7, 9, 40, 300):
        x = torch.linspace(-1, 1, length * 8).reshape(length, 8)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), ROWS[rows](x))
    assert texts
    for text in texts:
        assert all(int(spans) <= 64 for spans in re.findall(r"span < (\d+)", text)), "NVRTC unrolls them"


def test_where_a_part_begins_is_not_asked(texts):
    """Whether it begins with the first element, as one box does: a kernel adds a nothing."""

    def erased(x, first, last):
        x = x * 1
        x[:, first:last] = 0.5
        return x.relu()

    compiled = bothways.compile(erased, backend="native", fullgraph=True)
    for first, last in ((2, 5), (3, 7), (0, 6), (1, 9), (0, 2)):
        x = torch.linspace(-1, 1, 48).reshape(4, 12)
        torch.testing.assert_close(compiled(x, first, last), erased(x, first, last))
    assert texts
    assert not any("unknown" in str(one.why) for one in bothways.history(compiled)), bothways.history(compiled)[-1].why


def test_a_step_whose_batches_differ_shares_an_area_of_unknown_size(texts):
    def train(compile_step):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
        net = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        @compile_step
        def step(x):
            optimizer.zero_grad()
            loss = (net(x).softmax(-1) - x[:, :4].softmax(0)).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        batches = [torch.linspace(-1, 1, size * 8).reshape(size, 8) for size in (5, 5, 6, 9, 12, 5)]
        return [step(batch) for batch in batches], [parameter.detach() for parameter in net.parameters()]

    plain = train(lambda step: step)
    found = train(lambda step: bothways.compile(step, backend="native", fullgraph=True))
    torch.testing.assert_close(plain, found, rtol=1e-4, atol=1e-5)
    assert texts
