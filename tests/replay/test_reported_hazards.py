"""What people have met elsewhere with CUDA graphs, each as the smallest program that shows it."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from replaying import DEVICE, graphs, random, replays, why_not
from torch import nn

import bothways


@pytest.fixture(autouse=True)
def recorder():
    with graphs() as found:
        yield found


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_output_of_an_earlier_run_is_not_overwritten():
    """PyTorch's issues 169545 and 170604."""
    compiled = bothways.compile(lambda x: torch.sin(x) * 2 + 1)
    with torch.no_grad():
        x = random(16)
        outputs = [compiled(x + number) for number in range(6)]
        for number, output in enumerate(outputs):
            close(output, torch.sin(x + number) * 2 + 1)


def test_an_output_that_is_an_input_of_the_next_run():
    def advance(x):
        return torch.sin(x) * 0.5 + x

    compiled = bothways.compile(advance)
    with torch.no_grad():
        ours = theirs = random(16)
        for _ in range(8):
            ours, theirs = compiled(ours), advance(theirs)
            close(ours, theirs)


def test_a_cache_that_is_returned_and_written_again():
    def attend(key, cache, place):
        cache[place] = key
        return cache.softmax(0), cache

    compiled = bothways.compile(attend)
    ours, theirs = random(8, 4, seed=0), random(8, 4, seed=0)
    place = torch.zeros((), dtype=torch.int64, device=DEVICE)
    with torch.no_grad():
        for step in range(8):
            place.fill_(step)
            key = random(4)
            found, returned = compiled(key, ours, place)
            close(found, attend(key, theirs, place)[0])
            close(ours, theirs)
            assert returned is ours


def test_accumulated_gradients_are_whole():
    """PyTorch's issue 96693: they were a quarter of what they should be."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8, device=DEVICE)
    compiled = bothways.compile(lambda x: torch.tanh(layer(x)) * 2)
    for _ in range(3):
        layer.zero_grad()
        inputs = [random(4, 8) for _ in range(4)]
        for x in inputs:
            (compiled(x).sum() / 4).backward()
        found = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        for x in inputs:
            ((torch.tanh(layer(x)) * 2).sum() / 4).backward()
        close(found, [parameter.grad for parameter in layer.parameters()])


def test_gradients_accumulate_into_a_tensor_of_the_users():
    """PyTorch's issue 181723."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8, device=DEVICE)
    compiled = bothways.compile(lambda x: torch.tanh(layer(x)) * 2)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    kept = [parameter.grad for parameter in layer.parameters()]
    expected = [torch.zeros_like(gradient) for gradient in kept]
    for _ in range(6):
        x = random(4, 8)
        compiled(x).sum().backward()
        step = torch.autograd.grad((torch.tanh(layer(x)) * 2).sum(), list(layer.parameters()))
        for total, gradient in zip(expected, step, strict=True):
            total += gradient
        close(kept, expected)
    assert all(parameter.grad is gradient for parameter, gradient in zip(layer.parameters(), kept, strict=True))


def test_a_mutated_input_is_no_reason_to_launch_one_by_one():
    """PyTorch's issue 139207."""
    def count(x, total):
        total.add_(x.sum())
        return torch.sin(x) + total

    compiled = bothways.compile(count)
    ours, theirs = torch.zeros((), device=DEVICE), torch.zeros((), device=DEVICE)
    with torch.no_grad():
        for _ in range(6):
            x = random(16)
            close(compiled(x, ours), count(x, theirs))
            close(ours, theirs)
    assert replays(compiled)["forward"] == 4


def test_memory_does_not_grow_with_sizes_that_change():
    """PyTorch's issue 116096."""
    compiled = bothways.compile(lambda x: torch.softmax(x @ x.T, -1) + 1, dynamic=True)
    with torch.no_grad():
        for number in range(60):
            x = random(2 + number % 20, 8)
            close(compiled(x), torch.softmax(x @ x.T, -1) + 1)
    assert sum(held.recordings for held in bothways.memory()) <= 8


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes_that_change_with_each_batch(dynamic):
    """PyTorch's issue 188150. Sizes that come again are replayed, and a new one is right at once."""

    def attend(x):
        return torch.softmax(x @ x.T, -1) @ x + 1

    compiled = bothways.compile(attend, dynamic=dynamic)
    with torch.no_grad():
        for size in (3, 5, 4) * 6 + (7, 8, 9, 3, 4, 5):
            x = random(size, 8)
            close(compiled(x), attend(x))
    assert replays(compiled)["forward"] >= 9, why_not(compiled)


def test_memory_is_free_when_the_model_is_gone():
    """PyTorch's issue 105181."""
    def train():
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEVICE)
        compiled = bothways.compile(model)
        for _ in range(5):
            compiled(random(16, 64)).sum().backward()

    def settled():
        bothways.reset()
        gc.collect()
        return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0

    train()
    before = settled()
    for _ in range(3):
        train()
    assert settled() <= before
    assert bothways.memory() == []


def test_what_is_not_replayed_is_said():
    """PyTorch's issue 124506."""
    def transfer(x):
        return torch.sin(x.cpu().to(x.device) if x.is_cuda else x.to(torch.float64)) + 1

    compiled = bothways.compile(transfer)
    with torch.no_grad():
        for _ in range(5):
            x = random(16)
            close(compiled(x), transfer(x))
    told = bothways.explain(compiled).details
    if DEVICE == "cuda":
        assert "not replayed" in told or "as captured" in told or "as ATen operations" in told
    else:
        assert "forward: replayed" in told


def test_two_models_in_two_threads():
    failures = []

    def train(seed):
        try:
            generator = torch.Generator(DEVICE).manual_seed(seed)
            weight = torch.randn(8, 8, device=DEVICE, generator=generator)

            def program(x):
                return F.layer_norm(torch.relu(x @ weight) + seed, (8,))

            compiled = bothways.compile(program)
            held = []
            with torch.no_grad():
                for _ in range(40):
                    x = torch.randn(4, 8, device=DEVICE, generator=generator)
                    held.append((compiled(x), program(x)))
            for found, expected in held:
                close(found, expected)
        except BaseException as error:
            failures.append(error)

    with bothways.config.patch(cuda_graphs=True):
        threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_one_function_in_two_threads():
    weight = random(8, 8)

    def program(x):
        return F.layer_norm(torch.relu(x @ weight) + 1, (8,))

    compiled, failures = bothways.compile(program), []

    def call(seed):
        try:
            generator = torch.Generator(DEVICE).manual_seed(seed)
            with torch.no_grad():
                for _ in range(40):
                    x = torch.randn(4, 8, device=DEVICE, generator=generator)
                    close(compiled(x), program(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


needs_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="no GPU")


@needs_gpu
def test_a_recording_that_the_device_refuses_leaves_random_numbers_and_memory_as_they_were():
    def masked(x, mask, value):
        y = F.dropout(x, 0.5)
        y[mask] = value
        return y * 2

    compiled = bothways.compile(masked)
    mask = random(16, 16) > 0
    with torch.no_grad():
        for seed in range(6):
            x = random(16, 16)
            torch.manual_seed(seed)
            expected = masked(x, mask, 0.5)
            torch.manual_seed(seed)
            assert torch.equal(compiled(x, mask, 0.5), expected)
            torch.rand(4, device=DEVICE)
        test = bothways.compile(lambda x: F.dropout(torch.sin(x), 0.5) + 1)
        for _ in range(4):
            test(x)
        assert replays(test)["forward"] == 2


@needs_gpu
def test_streams_have_recordings_of_their_own():
    weight = random(64, 64)

    def program(x):
        return F.layer_norm(torch.relu(x @ weight) + 1, (64,))

    compiled = bothways.compile(program)
    with torch.no_grad():
        streams = [torch.cuda.Stream() for _ in range(3)]
        found = []
        for number in range(30):
            stream = streams[number % 3]
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                x = random(64, 64)
                found.append((x, compiled(x)))
        torch.cuda.synchronize()
        for x, result in found:
            close(result, program(x))
    assert replays(compiled)["forward"] > 10 and why_not(compiled) == []


@needs_gpu
def test_a_replayed_function_inside_of_a_graph_of_the_users():
    weight = random(16, 16)
    compiled = bothways.compile(lambda x: torch.relu(x @ weight) * 2 + 1)
    with torch.no_grad():
        x = random(8, 16)
        for _ in range(5):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x)
        x.mul_(0.5)
        graph.replay()
        close(result, torch.relu(x @ weight) * 2 + 1)


@needs_gpu
def test_a_replay_does_not_wait_for_the_device():
    weight = random(16, 16)
    compiled = bothways.compile(lambda x: torch.relu(x @ weight) * 2 + 1)
    with torch.no_grad():
        x = random(8, 16)
        for _ in range(5):
            compiled(x)
        torch.cuda.synchronize()
        before = torch.cuda.Event()
        torch.cuda._sleep(1_000_000_000)
        before.record()
        compiled(x)
        waited = before.query()
        torch.cuda.synchronize()
    assert not waited
