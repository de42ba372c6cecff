"""Memory on a GPU: no call leaves any behind, programs free what they held, and running out of it changes nothing."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"]),
]


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, 10)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.layers(x)), labels)


def allocated():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def batch(size, width=64):
    return torch.randn(size, width, device="cuda"), torch.randint(0, 10, (size,), device="cuda")


def test_training_holds_what_it_held_after_the_first_steps(backend):
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = bothways.compile(model, backend=backend)
    x, labels = batch(32)

    def step():
        optimizer.zero_grad()
        loss = compiled(x, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    held = []
    for _ in range(6):
        for _ in range(10):
            step()
        held.append(allocated())
    assert len(set(held[1:])) == 1


def test_shapes_that_change_leave_nothing_behind(backend):
    model = Model().cuda()
    compiled = bothways.compile(model, backend=backend)

    def round_trip():
        for size in (8, 24, 16, 40, 8):
            compiled(*batch(size)).backward()
        model.zero_grad()

    for _ in range(2):
        round_trip()
    before = allocated()
    for _ in range(5):
        round_trip()
    assert allocated() == before


def test_a_forward_without_a_backward_is_freed(backend):
    compiled = bothways.compile(Model().cuda(), backend=backend)
    x, labels = batch(32)
    for _ in range(2):
        compiled(x, labels).backward()
    before = allocated()
    for _ in range(5):
        loss = compiled(x, labels)
        del loss
    assert allocated() == before


def test_a_program_that_is_gone_holds_nothing(backend):
    torch.zeros(1, device="cuda") @ torch.zeros(1, device="cuda")  # what cuBLAS keeps does not count here
    (torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")).sum()
    before = allocated()
    model = Model().cuda()
    compiled = bothways.compile(model, backend=backend)
    for _ in range(3):
        compiled(*batch(32)).backward()
    del model, compiled
    bothways.reset()
    work_areas = 40 << 20  # of cuBLAS
    assert allocated() - before <= work_areas
    again = allocated()
    model = Model().cuda()
    compiled = bothways.compile(model, backend=backend)
    for _ in range(3):
        compiled(*batch(32)).backward()
    del model, compiled
    bothways.reset()
    assert allocated() == again


def test_an_error_in_the_middle_holds_nothing(backend):
    def program(x, y):
        z = (x * 2).sin()
        return z @ y

    compiled = bothways.compile(program, backend=backend)
    x, fits, not_fitting = (torch.randn(32, size, device="cuda", requires_grad=True) for size in (32, 32, 16))
    compiled(x, fits).sum().backward()
    before = allocated()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            compiled(x, not_fitting.t())
    assert allocated() <= before


@pytest.fixture
def little_memory():
    """About one gigabyte more than is held now."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_running_out_of_memory_is_eagers_error_and_leaves_no_memory_behind(backend, little_memory):
    """What was changed before the error stays changed in eager; a graph that was differentiated writes at its end."""

    def program(state, x, big):
        state.mul_(2)
        wide = (x * 3).sin()[:, None] + torch.zeros(big, device="cuda")
        return wide.exp()

    def observe(function):
        state, x = torch.ones(4, device="cuda"), torch.ones(1024, device="cuda")
        function(state, x, 8)
        held = allocated()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            function(state, x, 1 << 19)  # 2 GB
        assert allocated() <= held
        function(state, x, 16)
        return state.tolist()

    assert observe(program) == [8.0] * 4
    assert observe(bothways.compile(program, backend=backend)) in ([8.0] * 4, [4.0] * 4)


def test_running_out_of_memory_in_a_backward(backend, little_memory):
    def program(x):
        return (x.sin() * x.cos()).exp() * x.tanh()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    small = torch.rand(1024, device="cuda", requires_grad=True)
    compiled(small).sum().backward()
    before = allocated()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        x = torch.rand(60 << 20, device="cuda", requires_grad=True)
        results = [compiled(x) for _ in range(3)]
        sum(results).sum().backward()
    x = results = None
    assert allocated() == before
    expected = small.grad.clone()
    small.grad = None
    compiled(small).sum().backward()
    torch.testing.assert_close(small.grad, expected)


def test_an_index_out_of_range_is_not_computed_with(backend):
    """Eager's device assert ends the process; what is asked here is the check that the CPU does before."""

    def program(x, index):
        return x[:, index].sin()

    compiled = bothways.compile(program, backend=backend)
    x = torch.rand(4, 4, device="cuda")
    torch.testing.assert_close(compiled(x, 3), program(x, 3))
    with pytest.raises(IndexError):
        compiled(x, 4)


def test_what_products_work_in_stays_as_long_as_a_recording(backend):
    """Graphs that were recorded on one stream hold the same memory, also when some of them are gone."""

    def trained(model, compiled, steps):
        x, labels = batch(32)
        for _ in range(steps):
            model.zero_grad()
            compiled(x, labels).backward()
        return x, labels

    with bothways.config.patch(cuda_graphs=True):
        models = [Model().cuda().eval() for _ in range(2)]
        compiled = [bothways.compile(model, backend=backend) for model in models]
        for model, one in zip(models, compiled, strict=True):
            trained(model, one, 6)
        compiled.pop(0)
        models.pop(0)
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(16)]
        x, labels = trained(models[0], compiled[0], 3)
        found = [parameter.grad.clone() for parameter in models[0].parameters()]
        models[0].zero_grad()
        models[0](x, labels).backward()
        torch.testing.assert_close(found, [parameter.grad for parameter in models[0].parameters()])
        assert all(other.isnan().all() for other in others)
