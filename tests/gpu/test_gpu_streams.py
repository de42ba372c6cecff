"""A compiled call runs on the stream and the device that are current at the call, and waits for no other."""

import pytest
import torch
import torch.nn.functional as F

import bothways

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"]),
]
SLEEP = 50_000_000  # clock cycles: tens of milliseconds


def program(x, w):
    return F.layer_norm(torch.relu(x @ w) * 2 + x.sin(), x.shape[-1:]).softmax(-1)


def data(size=64):
    generator = torch.Generator("cuda").manual_seed(3)
    return [torch.rand(size, size, device="cuda", generator=generator) for _ in range(2)]


def trained(function, x, w):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    result = function(x, w)
    result.square().sum().backward()
    return result.detach(), x.grad, w.grad


def equal(found, expected):
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("warm", [False, True], ids=["the first call", "a later call"])
def test_work_is_ordered_with_what_is_on_the_current_stream(backend, warm):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, w = data()
    expected = trained(program, x, w)
    if warm:
        trained(compiled, x, w)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(SLEEP)
        late.copy_(x)  # whoever runs elsewhere, or too early, sees zeros
        found = trained(compiled, late, w)
    torch.cuda.current_stream().wait_stream(stream)
    equal(found, expected)


def test_a_program_made_on_one_stream_runs_on_another(backend):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, w = data()
    expected = trained(program, x, w)
    streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)]
    for stream in streams * 2:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = trained(compiled, x, w)
        torch.cuda.current_stream().wait_stream(stream)
        equal(found, expected)
    assert len(bothways.history(compiled)) == 1


def test_two_streams_at_once(backend):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, w = data(256)
    with torch.no_grad():
        expected = program(x, w)
        compiled(x, w)
        streams = [torch.cuda.Stream() for _ in range(4)]
        results = []
        for stream in streams * 5:
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                results.append(compiled(x, w))
        torch.cuda.synchronize()
    for result in results:
        equal(result, expected)


def test_a_hit_does_not_wait_for_the_device(backend):
    """A call returns while the device still sleeps: nothing in it reads back."""
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, w = data()
    for _ in range(2):
        trained(compiled, x, w)
    torch.cuda.synchronize()
    before = torch.cuda.Event()
    torch.cuda._sleep(20 * SLEEP)
    before.record()
    trained(compiled, x, w)
    waited = before.query()
    torch.cuda.synchronize()
    assert not waited


def test_a_call_inside_of_a_cuda_graph(backend):
    """What people capture by hand: a compiled function inside of torch.cuda.graph."""
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, w = data()
    with torch.no_grad():
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                compiled(x, w)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x, w)
        x.mul_(0.5)
        graph.replay()
        equal(result, program(x, w))


def test_pinned_memory_is_copied_without_waiting(backend):
    def moved(x, w):
        return (x.to("cuda", non_blocking=True) @ w).sin()

    compiled = bothways.compile(moved, backend=backend)
    _, w = data()
    for _ in range(3):
        x = torch.rand(64, 64).pin_memory()
        equal(compiled(x, w), moved(x, w))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current_one(backend):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, w = (tensor.to(device) for tensor in data())
        found = trained(compiled, x, w)
        assert {tensor.device for tensor in found} == {torch.device(device)}
        equal(found, trained(program, x, w))
