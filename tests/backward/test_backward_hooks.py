"""Hooks of all kinds inside captured backwards: each runs as often, in the order and with what eager gives it."""

import functools

import pytest
import torch
from backward_counting import Captured

import bothways
from bothways import errors
from bothways.backward import engine
from bothways.record.backwards import backwards

BACKENDS = ["eager", "aot_eager", "native"]


class Scale(torch.autograd.Function):
    """With numbers and tensors of its own, and a second result whose gradient may not arrive."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor, x + 1

    @staticmethod
    def backward(ctx, grad, other):
        (x,) = ctx.saved_tensors
        ctx.seen = ctx.factor
        return grad * ctx.factor + other * x.cos(), None


def everything(log):
    """A backward with hooks of every kind; gives what it leaves behind."""
    torch.manual_seed(0)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    x.register_hook(lambda grad: (log.append("tensor x"), grad * 2)[1])
    x.register_hook(lambda grad: log.append("tensor x again"))
    w.register_post_accumulate_grad_hook(lambda leaf: log.append("leaf w"))
    y = x * w
    y.retain_grad()
    y.grad_fn.register_prehook(lambda grads: (log.append("before mul"), (grads[0] + 1,))[1])
    y.grad_fn.register_hook(lambda results, grads: (log.append("after mul"), (results[0] * 3, results[1]))[1])
    z, _ = Scale.apply(y, 2.5)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: (log.append("unpack"), t)[1]):
        z = z.sin()
    (z * z.detach()).sum().backward()
    return x.grad, w.grad, y.grad


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_hooks_of_every_kind_as_in_eager(backend):
    eager_log, log = [], []
    expected = everything(eager_log)
    compiler = Captured(backend) if backend else lambda module: module
    with bothways.autograd.capture(compiler):
        for _ in range(3):
            log.clear()
            found = everything(log)
            assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))
            assert log == eager_log
    assert sum(len(record.modules) for record in backwards) == 1
    assert [reason for record in backwards for reason in record.plain] == []


def test_hooks_of_several_branches_run_in_eagers_order():
    def run(log):
        torch.manual_seed(0)
        leaves = [torch.randn(3, requires_grad=True) for _ in range(4)]
        branches = []
        for index, leaf in enumerate(leaves):
            leaf.register_hook(lambda grad, index=index: log.append(f"leaf {index}"))
            middle = leaf * (index + 1)
            middle.register_hook(lambda grad, index=index: log.append(f"middle {index}"))
            branches.append(middle.sin() if index % 2 else middle)
        (branches[2] * branches[0] + branches[3] * branches[1] + branches[0]).sum().backward()

    expected = []
    run(expected)
    with bothways.autograd.capture(Captured()):
        for _ in range(2):
            log = []
            run(log)
            assert log == expected


def test_the_context_of_a_custom_function_is_its_node():
    def run():
        x = torch.ones(3, requires_grad=True)
        y, _ = Scale.apply(x, 2.5)
        node = y.grad_fn
        y.sum().backward()
        return node.seen

    with bothways.autograd.capture(Captured()):
        assert run() == 2.5 == run()


def test_another_number_on_the_context_is_noticed():
    compiler = Captured()
    with bothways.autograd.capture(compiler):
        for factor in (2.0, 3.0, 4.0, 2.0):
            x = torch.ones(3, requires_grad=True)
            y, _ = Scale.apply(x, factor)
            y.sum().backward()
            assert torch.equal(x.grad, torch.full((3,), factor))
    assert len(compiler.modules) == 1


def test_a_hook_of_the_same_code_with_another_number():
    def scaled(grad, *, factor):
        return grad * factor

    compiler = Captured()
    with bothways.autograd.capture(compiler):
        for factor in (1, 2, 5):
            x = torch.ones(3, requires_grad=True)
            y = x * 2
            y.register_hook(functools.partial(scaled, factor=factor))
            y.sum().backward()
            assert torch.equal(x.grad, torch.full((3,), 2.0 * factor))
    assert len(compiler.modules) == 1


def test_a_hook_that_changes_an_object():
    class Counter:
        count = 0

    counter = Counter()

    def hook(grad):
        counter.count += 1
        return grad * counter.count

    with bothways.autograd.capture(Captured()):
        for step in (1, 2, 3):
            x = torch.ones(3, requires_grad=True)
            y = x * 2
            y.register_hook(hook)
            y.sum().backward()
            assert counter.count == step
            assert torch.equal(x.grad, torch.full((3,), 2.0 * step))


def test_more_hooks_are_another_program():
    compiler = Captured()
    with bothways.autograd.capture(compiler):
        for count in (0, 1, 2, 1):
            x = torch.ones(3, requires_grad=True)
            for _ in range(count):
                x.register_hook(lambda grad: grad * 2)
            x.sum().backward()
            assert torch.equal(x.grad, torch.full((3,), 2.0**count))
    assert len(compiler.modules) == 3


def test_a_hook_of_a_leaf_may_change_the_leaf():
    def run():
        x = torch.full((3,), 0.5, requires_grad=True)

        def update(leaf):
            with torch.no_grad():
                leaf.sub_(leaf.grad)
            leaf.grad = None

        x.register_post_accumulate_grad_hook(update)
        (x * 2).sum().backward()
        return x.detach(), x.grad

    expected = run()
    with bothways.autograd.capture(Captured()):
        for _ in range(2):
            found = run()
            assert torch.equal(expected[0], found[0]) and found[1] is None


def test_a_hook_that_cannot_be_captured_breaks():
    def run(log):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: (log.append(str(grad.tolist())), grad * 2)[1])
        y.register_hook(lambda grad: log.append("second"))
        y.sum().backward()
        return x.grad

    expected_log = []
    expected = run(expected_log)
    with bothways.autograd.capture(Captured(fullgraph=False)):
        for _ in range(2):
            log = []
            assert torch.equal(expected, run(log))
            assert log == expected_log


def test_under_fullgraph_it_is_named_and_nothing_has_happened():
    log = []

    def talkative(grad):
        log.append("called")
        print("the gradient is", grad)
        return grad * 2

    x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = x * w
    y.register_hook(talkative)
    with bothways.autograd.capture(Captured()), pytest.raises(errors.Unsupported) as raised:
        y.sum().backward()
    assert raised.value.break_.where.line == talkative.__code__.co_firstlineno + 2
    assert "print" in str(raised.value) or "text" in str(raised.value)
    assert log == [] and x.grad is None and w.grad is None


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_an_exception_in_a_hook_is_the_users(backend):
    def run(log):
        torch.manual_seed(0)
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        w.register_hook(lambda grad: log.append("w"))

        def failing(grad):
            log.append("failing")
            raise ValueError("no such gradient")

        x.register_hook(failing)
        with pytest.raises(ValueError, match="no such gradient"):
            (x * w).sum().backward()
        return log, w.grad, x.grad

    expected = run([])
    compiler = Captured(backend, fullgraph=False) if backend else lambda module: module
    with bothways.autograd.capture(compiler):
        for _ in range(2):
            found = run([])
            assert found[0] == expected[0]
            assert found[2] is None
            assert (found[1] is None) == (expected[1] is None)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda grad: 3, "expected Variable, but hook returned 'int'"),
        (lambda grad: grad.double(), "has changed the type of value"),
        (lambda grad: grad[:2], "has changed the size of value"),
    ],
)
def test_what_a_hook_may_not_return(wrong, message):
    def run():
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(wrong)
        y.sum().backward()

    with pytest.raises((TypeError, RuntimeError), match=message):
        run()
    for compiler in (lambda module: module, Captured(fullgraph=False)):
        bothways.reset()
        with bothways.autograd.capture(compiler), pytest.raises((TypeError, RuntimeError), match=message):
            run()


def test_gradients_that_do_not_arrive_are_none_or_zeros():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return None

    def run(log):
        x = torch.ones(3, requires_grad=True)
        x.register_hook(lambda grad: log.append(grad is None))
        y = x * 2
        Nothing.apply(y).sum().backward()
        return x.grad

    expected = []
    assert run(expected) is None
    with bothways.autograd.capture(Captured()):
        log = []
        assert run(log) is None
        assert log == expected


def test_module_hooks_run():
    def run(log):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        model[0].register_full_backward_hook(lambda module, results, grads: log.append("full"))
        model[1].register_full_backward_pre_hook(lambda module, grads: log.append("pre"))
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
        return [p.grad for p in model.parameters()]

    expected_log = []
    expected = run(expected_log)
    with bothways.autograd.capture(Captured(fullgraph=False)):
        for _ in range(2):
            log = []
            assert all(map(torch.allclose, expected, run(log)))
            assert log == expected_log


def test_hooks_that_captured_code_registered_are_looked_into():
    def hook(grad):
        return grad * 3

    @bothways.compile(backend="eager", fullgraph=True)
    def forward(x):
        y = x * 2
        y.register_hook(hook)
        return y.sin()

    def run():
        x = torch.ones(3, requires_grad=True)
        forward(x).sum().backward()
        return x.grad

    expected, compiler = run(), Captured()
    with bothways.autograd.capture(compiler):
        assert torch.allclose(expected, run()) and torch.allclose(expected, run())
    assert len(compiler.modules) == 1


def test_callbacks_for_the_end_of_the_backward():
    def run(log):
        x = torch.ones(3, requires_grad=True)

        def hook(grad):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: log.append(x.grad is not None))

        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        log.append("after")

    expected = []
    run(expected)
    with bothways.autograd.capture(Captured(fullgraph=False)):
        for _ in range(2):
            log = []
            run(log)
            assert log == expected


def test_a_backward_inside_a_hook_runs_on_its_own():
    def run():
        torch.manual_seed(0)
        inner = torch.randn(3, requires_grad=True)
        x = torch.randn(3, requires_grad=True)

        def hook(grad):
            with torch.enable_grad():
                inner.sin().sum().backward()

        y = x * 2
        y.register_hook(hook)
        y.sum().backward()
        return x.grad, inner.grad

    expected = run()
    with bothways.autograd.capture(Captured(fullgraph=False)):
        for _ in range(2):
            assert all(map(torch.allclose, expected, run()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrapped_call_in_a_hook_is_part_of_the_program(backend):
    """The hook of a compiled function calls through ``trace_wrapped``; the captured backward looks into it."""
    counts = [0, 0]

    def squared(grad, place):
        counts[place] += 1
        return grad * grad

    def program(x, place):
        y = x * 3
        y.register_hook(lambda grad: bothways.trace_wrapped(grad, fn=functools.partial(squared, place=place)))
        return y.sin().sum()

    compiled, captured = bothways.compile(program, backend=backend), Captured(backend)
    for _ in range(2):
        plain, ours = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        program(plain, 0).backward()
        with bothways.autograd.capture(captured):
            compiled(ours, 1).backward()
        assert torch.allclose(plain.grad, ours.grad)
    assert counts[0] == counts[1] == 2
    assert len(captured.modules) == 1


def test_an_exception_on_pytorchs_engine_has_no_context_of_ours(monkeypatch):
    """A backward that no program takes runs as if it had never been tried."""

    def raises(grad):
        raise ValueError("the user's")

    monkeypatch.setattr(engine, "MOST_CAPTURES", 0)
    x = torch.ones(3, requires_grad=True)
    x.register_hook(raises)
    with bothways.autograd.capture(Captured()), pytest.raises(ValueError, match="the user's") as raised:
        (x * 2).sum().backward()
    assert raised.value.__context__ is None
    assert x.grad is None
    assert "another one each time" in str(bothways.autograd.history()[-1])
