"""PyTorch's warnings: the user's line is blamed, as often as in plain Python, and capture adds none of its own."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from pythons import run_python

import bothways
from bothways.runtime.listening import FILTER, listening

BACKENDS = ["eager", "aot_eager", "native"]


def grad_of_a_result(x):
    v = x * 2
    v.grad  # noqa: B018
    return v + 1


def copy_of_a_tensor(x):
    return x + torch.tensor(x.detach())


def copy_by_method(x):
    return x + x.new_tensor(x.detach())


def std_of_one(x):
    return x[:1].std() + x


def var_of_one_by_function(x):
    return torch.var(x[:1], 0) + x


def var_of_one_by_name(x):
    return torch.var(input=x[:1]) + torch.std(input=x[:1], dim=0) + x


def pairs_of_one_by_name(x):
    return torch.std_mean(input=x[:1])[0] + torch.var_mean(input=x[:2], correction=2)[0] + x


def std_of_enough_by_name(x):
    return torch.std(input=x) + torch.std(input=x[:1], unbiased=False) + torch.var_mean(input=x, dim=0)[1] + x


def std_of_enough(x):
    return x.std() + x[:1].std(unbiased=False) + x


def reversed_dimensions(x):
    return x.reshape(2, 1, 2).T.sum() + x


def sizes_that_differ(x):
    return F.mse_loss(x, x.reshape(4, 1).detach()) + x


def no_dimension(x):
    return F.softmax(x) + x


def grid(x):
    a, b = torch.meshgrid(x, x)
    return a.sum() + b.sum() + x


def out_of_another_size(x):
    out = torch.empty(3)
    torch.add(x.detach(), 1, out=out)
    return x + out.sum()


def deprecated_range(x):
    return x + torch.range(1, 4)


def real_part_by_conversion(x):
    return torch.complex(x, x).to(torch.float32) + x


def random_numbers(x):
    torch.manual_seed(0)
    return F.dropout2d(x.reshape(1, 4)).sum() + x


def deprecated_decomposition(x):
    return torch.triangular_solve(torch.ones(3, 1), torch.eye(3))[0].sum() + x


def inside_a_callee(x):
    return std_of_one(x) + std_of_one(x)


def in_a_loop(x):
    for _ in range(3):
        x = no_dimension(x)
    return x


def caught(x):
    try:
        return F.softmax(x) + 1
    except UserWarning:
        return x * 5


PROGRAMS = [
    grad_of_a_result, copy_of_a_tensor, copy_by_method, std_of_one, var_of_one_by_function, var_of_one_by_name,
    pairs_of_one_by_name, std_of_enough_by_name, std_of_enough,
    reversed_dimensions, sizes_that_differ, no_dimension, grid, out_of_another_size, deprecated_range,
    real_part_by_conversion, random_numbers, deprecated_decomposition, inside_a_callee, in_a_loop, caught,
]  # fmt: skip


@pytest.fixture(autouse=True)
def always():
    """What PyTorch says once in a process is said each time, so that both sides hear it."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    assert torch.is_warn_always_enabled()
    torch.set_warn_always(before)


def outcome(function, action):
    """What two calls with a backward give and say; ``action`` is the filter."""
    globals().pop("__warningregistry__", None)
    seen = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter(action)
        for _ in range(2):
            del said[:]
            x = torch.linspace(1, 2, 4).requires_grad_()
            try:
                result = function(x)
                result.sum().backward()
                gave = result.tolist(), x.grad.tolist()
            except Warning as warning:
                gave = repr(warning)
            seen.append((gave, [(each.category, str(each.message), each.filename, each.lineno) for each in said]))
    return seen


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_users_line_is_blamed_as_often_as_without_us(program, backend):
    for action in ("default", "always", "error", "ignore"):
        expected = outcome(program, action)
        assert str(outcome(bothways.compile(program, backend=backend), action)) == str(expected), action


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_fullgraph(backend):
    for program in (std_of_one, no_dimension, grad_of_a_result, sizes_that_differ):
        expected = outcome(program, "always")
        assert str(outcome(bothways.compile(program, backend=backend, fullgraph=True), "always")) == str(expected)


def test_filters_that_change_after_the_first_call():
    compiled = bothways.compile(no_dimension, backend="aot_eager")
    for action in ("always", "error", "ignore", "default", "always"):
        assert str(outcome(compiled, action)) == str(outcome(no_dimension, action))


def test_with_sizes_that_change():
    compiled = bothways.compile(no_dimension, backend="aot_eager", dynamic=True)
    for size in (3, 4, 7):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = compiled(torch.ones(size))
        assert torch.allclose(result, torch.full((size,), 1 + 1 / size))
        assert [(each.filename, "softmax" in str(each.message)) for each in said] == [(__file__, True)]


def test_what_is_not_warned_about_stays_one_graph():
    recorded = bothways.testing.RecordGraphs()
    bothways.compile(std_of_enough, backend=recorded, fullgraph=True)(torch.ones(4))
    assert [op for op in recorded.only.ops if "std" in op] == ["std", "std"]


def test_listening_leaves_filters_and_other_threads_alone():
    def other():
        with listening():
            warnings.warn("dropped", stacklevel=1)
        warnings.warn("heard", stacklevel=1)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with listening():
            with listening():
                warnings.warn("dropped", stacklevel=1)
            warnings.warn("dropped too", stacklevel=1)
            thread = threading.Thread(target=lambda: warnings.warn("of another thread", stacklevel=1))
            thread.start()
            thread.join()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert warnings.filters == before and FILTER not in warnings.filters
    assert [str(each.message) for each in said] == ["of another thread", "heard"]


@pytest.mark.parametrize("step", ["set_warn_always", "is_warn_always_enabled"])
def test_an_interrupt_before_listening_begins_leaves_nothing_behind(monkeypatch, step):
    def interrupted(*args):
        raise KeyboardInterrupt

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with monkeypatch.context() as patch:
            original = torch.set_warn_always
            patch.setattr(torch, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                listening().__enter__()
            patch.setattr(torch, "set_warn_always", original)
        with listening():
            warnings.warn("dropped", stacklevel=1)
        assert warnings.filters == before
        warnings.warn("heard", stacklevel=1)
    assert [str(each.message) for each in said] == ["heard"]


def test_a_listener_that_could_not_end_in_order_listens_no_more():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        listener = listening()
        listener.__enter__()
        warnings.warn("dropped", stacklevel=1)
        del listener
        warnings.warn("heard", stacklevel=1)
        with listening():
            pass
        assert FILTER not in warnings.filters
    assert [str(each.message) for each in said] == ["heard"]


class Turns:
    """Another thread that takes one step at a time."""

    def __init__(self, steps):
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.run, args=(steps,), daemon=True).start()

    def run(self, steps):
        iterator = iter(steps())
        while True:
            self.go.acquire()
            ended = next(iterator, self) is self
            self.done.release()
            if ended:
                return

    def step(self):
        self.go.release()
        assert self.done.acquire(timeout=60)


def other_catches():
    with warnings.catch_warnings():
        yield
    yield


def test_catching_in_another_thread_that_begins_while_one_listens_brings_no_filter_back():
    with warnings.catch_warnings():
        other = Turns(other_catches)
        with listening():
            other.step()
        assert FILTER not in warnings.filters
        other.step()
        assert FILTER not in warnings.filters
        other.step()


def test_catching_in_another_thread_that_ends_while_one_listens_takes_no_more_than_its_own():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        other = Turns(other_catches)
        other.step()
        with listening():
            other.step()
            with listening():
                warnings.warn("dropped", stacklevel=1)
        assert FILTER not in warnings.filters
        warnings.warn("heard", stacklevel=1)
        other.step()
    assert [str(each.message) for each in said] == ["heard"]


def test_a_thread_that_walks_the_filters_misses_none_when_listening_ends():
    walks, ended = threading.Event(), threading.Event()

    class Slow(type):
        def __subclasscheck__(cls, category):
            walks.set()
            return not ended.wait(60)

    slow = Slow("slow", (Warning,), {})

    def other():
        warnings.warn("unheard", stacklevel=1)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore")
        warnings.filters.insert(0, ("always", None, slow, None, 0))
        thread = threading.Thread(target=other)
        with listening():
            thread.start()
            assert walks.wait(60)
        ended.set()
        thread.join()
    assert said == []


SCRIPT = """
import sys, warnings, torch, bothways

def program(x):
    return x.reshape(2, 1, 2).T.sum() + torch.meshgrid(x, x)[0].sum()

function = program if sys.argv[1] == "plain" else bothways.compile(program, backend=sys.argv[1])
for _ in range(3):
    function(torch.ones(4))
print(torch.is_warn_always_enabled())
"""


def test_what_is_said_once_in_a_process_is_said_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    sides = []
    for backend in ("plain", "aot_eager"):
        ran = run_python([script, backend])
        sides.append((ran.returncode, ran.stdout, ran.stderr))
    assert sides[0][1] == "False\n" and sides[0][2].count("UserWarning") == 2 and f"{script}:5" in sides[0][2]
    assert sides[0] == sides[1]
