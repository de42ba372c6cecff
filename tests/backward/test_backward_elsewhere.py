"""What captured backwards share a process with: threads, hooks in C++, PyTorch's names for the same thing."""

import copy
import threading

import pytest
import torch
import torch.distributed
from seeding import seeded

import bothways


def reasons():
    return [reason for record in bothways.autograd.history() for reason in record.plain]


def test_other_threads_are_not_captured():
    modules, found = [], []

    def elsewhere():
        x = torch.ones(3, requires_grad=True)
        x.sin().sum().backward()
        found.append(torch.allclose(x.grad, torch.ones(3).cos()))

    with bothways.autograd.capture(lambda module: (modules.append(module), module)[1]):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert found == [True] and modules == []


def test_threads_that_capture_at_the_same_time_are_right():
    wrong, started = [], threading.Barrier(4)

    def work(seed):
        generator = seeded(seed)
        started.wait()
        for step in range(15):
            x = torch.randn(3 + step % 2, generator=generator, requires_grad=True)
            x.register_hook(lambda grad: grad * 2)
            if seed % 2:
                with bothways.autograd.capture(lambda module: module):
                    (x.sin() * x).sum().backward()
            else:
                (x.sin() * x).sum().backward()
            expected = 2 * (x.detach().cos() * x.detach() + x.detach().sin())
            if not torch.allclose(x.grad, expected):
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_may_wait_for_another_one_inside_a_hook():
    x, found = torch.ones(3, requires_grad=True), []

    def elsewhere():
        y = torch.ones(3, requires_grad=True)
        with bothways.autograd.capture(lambda module: module):
            y.sin().sum().backward()
        found.append(y.grad is not None)

    def hook(grad):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    x.register_hook(hook)
    with bothways.autograd.capture(lambda module: module):
        x.sin().sum().backward()
    assert found == [True] and x.grad is not None


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_hooks_that_live_in_cpp_keep_the_backward_on_pytorchs_engine(process_group):
    def train(captured):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        for _ in range(2):
            model.zero_grad()
            loss = model(torch.ones(4, 3)).sum()
            if captured:
                with bothways.autograd.capture(lambda module: module):
                    loss.backward()
            else:
                loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    assert all(map(torch.equal, train(False), train(True)))
    assert any("Reducer" in reason for reason in reasons())


def test_explain_says_what_became_of_the_backwards_of_a_function():
    @bothways.compile(backend="eager")
    def step(x):
        y = (x * 2).sum()
        y.backward()
        return y

    x = torch.ones(3, requires_grad=True)
    with bothways.autograd.capture(lambda module: module):
        step(x)
        with torch.autograd.detect_anomaly(check_nan=False):
            step(x)
    (record,) = bothways.explain(step).backwards
    assert len(record.modules) == 1 and record.where.text == "y.backward()"
    text = bothways.explain(step).details
    assert "captured once" in text and "on PyTorch's engine once: anomaly mode" in text


def test_through_the_drop_in():
    import torch._dynamo.compiled_autograd as theirs

    bothways.install()
    try:
        compiled = []

        def compiler(module):
            compiled.append(module)
            return torch.compile(module, backend="eager", fullgraph=True, dynamic=True)

        for door in (theirs.enable, theirs._enable):
            x = torch.ones(3, requires_grad=True)
            with door(compiler):
                x.sin().sum().backward()
                with theirs._disable():
                    x.cos().sum().backward()
            assert torch.allclose(x.grad, torch.ones(3).cos() - torch.ones(3).sin())
        assert len(compiled) == 1
        theirs.reset()
        with theirs._enable(compiler):
            x.sin().sum().backward()
        assert len(compiled) == 2
    finally:
        bothways.uninstall()
    assert not hasattr(theirs, "enable")


def test_the_drop_ins_configuration_captures_what_compiled_functions_call_for():
    import torch._dynamo.config as theirs

    def step(x):
        (x.sin() * 2).sum().backward()
        return x.grad

    bothways.install()
    try:
        expected = step(torch.ones(3, requires_grad=True))
        with theirs.patch(compiled_autograd=True):
            compiled = torch.compile(step, backend="eager")
        assert torch.allclose(compiled(torch.ones(3, requires_grad=True)), expected)
        assert sum(len(record.modules) for record in bothways.autograd.history()) == 1
    finally:
        bothways.uninstall()


def test_the_drop_ins_configuration_captures_what_compiled_modules_call_for():
    import torch._dynamo.config as theirs

    @bothways.disable
    def differentiate(loss):
        loss.backward()

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(3.0))

        def forward(self, x):
            differentiate((x * self.weight.sin()).sum())
            return self.weight.grad * 2

    bothways.install()
    try:
        expected = [Step()(torch.full((3,), number)) for number in (1.0, 2.0)]
        with theirs.patch(compiled_autograd=True):
            compiled = torch.compile(Step(), backend="eager")
        for module in (compiled, copy.deepcopy(compiled)):
            for number, result in zip((1.0, 2.0), expected, strict=True):
                module.weight.grad = None
                assert torch.allclose(module(torch.full((3,), number)), result)
        assert sum(len(record.modules) for record in bothways.autograd.history()) == 1
        assert "Step" in bothways.explain(compiled).details
        x = torch.ones(3, requires_grad=True)
        x.cos().sum().backward()  # outside of any call
        assert sum(len(record.modules) for record in bothways.autograd.history()) == 1
    finally:
        bothways.uninstall()


def test_reset_forgets_captured_backwards():
    modules = []
    for count in (1, 1, 2):
        if count == 2:
            bothways.reset()
        x = torch.ones(3, requires_grad=True)
        with bothways.autograd.capture(lambda module: (modules.append(module), module)[1]):
            x.sin().sum().backward()
        assert len(modules) == count


def test_a_structure_that_never_comes_back_is_not_captured_for_ever(monkeypatch):
    monkeypatch.setattr("bothways.backward.engine.MOST_CAPTURES", 3)
    modules = []
    for depth in (1, 2, 3, 4, 5, 1):
        x = y = torch.ones(3, requires_grad=True)
        for _ in range(depth):
            y = y * 2
        with bothways.autograd.capture(lambda module: (modules.append(module), module)[1]):
            y.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0**depth))
    assert len(modules) == 3
    assert reasons() == ["its autograd graph is another one each time"]


@pytest.mark.parametrize("compiler", [lambda module: module, bothways.compile(backend="eager")])
def test_sparse_gradients(compiler):
    def run():
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True)
        found = []
        for step in range(3):
            loss = table(torch.tensor([1, 3, 1])).sum()
            if step == 1:
                loss = loss + table.weight.sum()
            loss.backward()
            found.append((table.weight.grad.layout, table.weight.grad.to_dense().clone()))
        return found

    expected = run()
    with bothways.autograd.capture(compiler):
        for (layout, grad), (wanted_layout, wanted) in zip(run(), expected, strict=True):
            assert layout == wanted_layout and torch.equal(grad, wanted)
