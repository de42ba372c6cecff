"""Threads: calls, captures, ``reset`` and ``set_stance`` at the same time; and forks while others capture."""

import os
import textwrap
import threading
import time

import pytest
import torch
from faults_threads import Stress
from pythons import run_python

import bothways
from bothways.runtime.size_history import SizeHistory
from bothways.testing import same


@pytest.fixture(autouse=True)
def default_stance():
    yield
    bothways.set_stance("default")


@pytest.mark.filterwarnings("ignore::bothways.errors.RecompileLimitWarning")
def test_threads_call_and_compile_while_others_reset_and_change_the_stance():
    stress = Stress().run(seconds=4)
    assert stress.wrong == [] and stress.calls > 50
    for compiled in stress.shared:
        assert compiled.__bothways__.dispatcher._redirected is None


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::bothways.errors.RecompileLimitWarning")
def test_threads_for_long():
    """For BOTHWAYS_FAULT_SECONDS, a minute unless that is said."""
    assert Stress(callers=6).run(float(os.environ.get("BOTHWAYS_FAULT_SECONDS", "60"))).wrong == []


def tells(x):
    return x + (100 if bothways.is_compiling() else 1)


def test_a_stance_reaches_functions_that_are_compiled_while_it_changes():
    done, made, failures = threading.Event(), [], []

    def compile_more():
        while not done.is_set() and len(made) < 300:
            made.append(bothways.compile(tells, backend="eager"))

    def change():
        try:
            while len(made) < 150:
                bothways.set_stance("force_eager")
                bothways.set_stance("default")
            bothways.set_stance("force_eager")
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=compile_more) for _ in range(2)]
    changing = threading.Thread(target=change)
    for thread in (*workers, changing):
        thread.start()
    changing.join()
    done.set()
    for thread in workers:
        thread.join()
    assert failures == []
    assert {compiled(torch.zeros(1)).item() for compiled in made} == {1}
    bothways.set_stance("default")
    assert {compiled(torch.zeros(1)).item() for compiled in made[:: max(1, len(made) // 20)]} == {100}


def test_a_stance_taken_while_a_function_is_captured_holds_afterwards():
    begun, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        begun.set()
        go_on.wait()
        return graph.forward

    compiled, x = bothways.compile(tells, backend=backend), torch.zeros(1)
    thread = threading.Thread(target=compiled, args=(x,))
    thread.start()
    begun.wait()
    bothways.set_stance("force_eager")
    go_on.set()
    thread.join()
    assert compiled(x).item() == 1
    bothways.set_stance("default")
    assert compiled(x).item() == 100


def test_reset_does_not_wait_for_a_capture_and_keeps_nothing_of_it():
    begun, go_on, results = threading.Event(), threading.Event(), []

    def backend(graph, inputs):
        begun.set()
        assert go_on.wait(60)
        return graph.forward

    compiled, x = bothways.compile(lambda x: x * 2, backend=backend), torch.ones(2)
    thread = threading.Thread(target=lambda: results.append(compiled(x)))
    thread.start()
    begun.wait()
    bothways.reset()
    go_on.set()
    thread.join()
    assert same(results[0], x * 2)
    assert bothways.explain(compiled).programs == []
    assert same(compiled(x), x * 2) and len(bothways.explain(compiled).programs) == 1


def test_a_capture_that_waited_through_a_reset_waits_for_those_since():
    """Misses of one function come one after the other, also where one of them waited for what was forgotten then."""
    goes_on, at_work, beside = [threading.Event() for _ in range(3)], [], []

    def backend(graph, inputs):
        beside.append(len(at_work))  # those that are captured at the same time
        at_work.append(graph)
        assert goes_on[len(beside) - 1].wait(60)
        at_work.remove(graph)
        return graph.forward

    compiled, threads = bothways.compile(lambda x: x * 2, backend=backend), []

    def call(size):
        threads.append(threading.Thread(target=compiled, args=(torch.ones(size),)))
        threads[-1].start()

    def until(captured):
        while len(beside) < captured:
            time.sleep(0.005)

    call(2)
    until(captured=1)
    call(3)
    time.sleep(0.1)  # it waits for the first by now
    bothways.reset()
    call(4)
    until(captured=2)
    goes_on[0].set()
    threads[0].join()
    time.sleep(0.1)  # the second might begin, and must not
    for event in goes_on:
        event.set()
    for thread in threads:
        thread.join()
    assert beside == [0, 1, 0]


def test_what_is_known_of_sizes_may_be_read_while_another_thread_adds_to_it():
    history = SizeHistory()

    class Size(int):
        """Another thread comes in between where it is compared."""

        def __gt__(self, other):
            history.dims("x", tensor(7, 8, 9))
            return int(self) > other

    def tensor(*shape):
        return type("Tensor", (), {"shape": shape})()

    history.dims("x", tensor(2, 2, 2))
    assert history.dims("x", tensor(Size(3), 2, 2)) == {0}
    assert history.dims("x", tensor(7, 8, 9)) == {0, 1, 2}


def test_what_a_running_program_reads_stays_until_it_has_run():
    """A reset in the middle of a program: what comes after it is still there; when it has run, it is gone."""
    begun, go_on, results = threading.Event(), threading.Event(), []
    waits = []

    def backend(graph, inputs):
        def run(*args):
            if waits:
                begun.set()
                assert go_on.wait(60)
            return graph.forward(*args)

        return run

    def program(x, log):
        y = x * 2
        log.append(y)
        return {"y": y, "sum": y + 1}

    compiled, x = bothways.compile(program, backend=backend), torch.ones(2)
    compiled(x, [])
    waits.append(True)
    log = []
    thread = threading.Thread(target=lambda: results.append(compiled(x, log)))
    thread.start()
    begun.wait()
    names = compiled.__globals__
    before = [name for name in names if "_graph_" in name]
    bothways.reset()
    assert [name for name in names if "_graph_" in name] == before
    go_on.set()
    thread.join()
    waits.clear()
    expected = []
    assert same(results[0], program(x, expected)) and same(log, expected)
    assert [name for name in names if "_graph_" in name] == []


# Forks. In processes of their own: this one has threads that do not survive.


def run(program):
    program = f"import warnings\nwarnings.simplefilter('ignore')\n{textwrap.dedent(program)}"
    done = run_python(["-c", program], env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert done.returncode == 0, done.stdout + done.stderr


FORK = """
import os, threading, time, torch, bothways
torch.set_num_threads(1)
x = torch.ones(4)
begun, go_on = threading.Event(), threading.Event()

def waits():
    begun.set()
    go_on.wait(50)

def in_child(check):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    end = time.time() + 40
    while time.time() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"
"""


def test_a_child_compiles_what_another_thread_was_compiling():
    run(FORK + """
parent = os.getpid()

def backend(graph, inputs):
    if os.getpid() == parent:
        waits()
    return graph.forward

f = bothways.compile(lambda x: torch.sin(x) + 1, backend=backend)
thread = threading.Thread(target=f, args=(x,))
thread.start()
begun.wait()
found = in_child(lambda: torch.equal(f(x), torch.sin(x) + 1) and len(bothways.explain(f).programs) == 1)
go_on.set()
thread.join()
assert found == 0, found
assert torch.equal(f(x), torch.sin(x) + 1) and len(bothways.explain(f).programs) == 1
""")


def test_a_child_does_not_wait_for_a_lock_of_another_thread():
    run(FORK + """
from bothways.api.dropin import installer
from bothways.backends import registry
from bothways.driver import stances
import sys
config = sys.modules["bothways.config"]
f = bothways.compile(lambda x, n: torch.sin(x) + n, backend="eager", dynamic=False)
f(x, 1)

def hold(lock):
    with lock:
        waits()

def check():
    with bothways.config.patch(recompile_limit=3):
        good = all(torch.equal(f(x, n), torch.sin(x) + n) for n in (1, 2, 1, 2))
    bothways.set_stance("force_eager")
    bothways.set_stance("default")
    bothways.register_backend(lambda graph, inputs: graph.forward, name="mine")
    bothways.install()
    bothways.uninstall()
    bothways.reset()
    return good and torch.equal(f(x, 2), torch.sin(x) + 2)

state = f.__bothways__
for lock in (
    state._pool.lock, state.dispatcher._lock, stances._current.lock, config._lock, registry._lock, installer._lock
):
    begun.clear()
    go_on.clear()
    thread = threading.Thread(target=hold, args=(lock,))
    thread.start()
    begun.wait()
    found = in_child(check)
    go_on.set()
    thread.join()
    assert found == 0, (lock, found)
""")


def test_a_lock_of_the_thread_that_forks_stays_its_own():
    run(FORK + """
from bothways.locks import Lock
lock = Lock()
free = []

def check():
    def other():
        if lock.acquire(blocking=False):
            free.append(1)
            lock.release()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    return not free

with lock:
    assert in_child(check) == 0
assert lock.acquire(blocking=False)
""")


def test_the_package_is_loaded_as_a_whole():
    """A child that was forked while another thread loads a module would wait for that thread when it wants it."""
    run("""
import pkgutil, sys, torch, bothways
names = {module.name for module in pkgutil.walk_packages(bothways.__path__, "bothways.")}
others = ("__main__", "py311", "py312", "py313")
later = {name for name in names - set(sys.modules) if name.rpartition(".")[2] not in others}
later = {name for name in later if ".dialects.reference" not in name}  # which only tests use
# What the first tensor on a GPU loads, and what a person asks for by name.
gpu = ("dialects.cuda", "building.cuda_", "building.nvrtc", "calls.launch", "replay.cuda_", "replay.kernel_",
       "replay.workspace")
asked = (".commands.", "api.behind_pytorch", "dropin.compiler_names", "testing.reproducing")
later = {name for name in later if not any(part in name for part in (*gpu, *asked))}
assert not later, later
torch.ones((), requires_grad=True).backward()  # which loads something itself since PyTorch 2.15
before = set(sys.modules)
for backend in ("eager", "aot_eager", "native"):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    f = bothways.compile(lambda x, table: model(x).sum() + len(dict(table).keys()), backend=backend)
    for size in (2, 3, 4):
        f(torch.ones(size, 4, requires_grad=True), {"a": size}).backward()
loaded = {name for name in set(sys.modules) - before if name.partition(".")[0] in ("bothways", "torch")}
assert not loaded, loaded
""")


def test_forks_while_threads_capture_and_call():
    run(FORK + """
done = threading.Event()

def work(n):
    while not done.is_set():
        f = bothways.compile(lambda x, n: torch.cos(x) * n, backend="aot_eager", dynamic=None)
        for size in (3, 4, 5):
            f(torch.ones(size), n)

threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
shared = bothways.compile(lambda x, n: torch.sin(x) + n, backend="eager")
for thread in threads:
    thread.start()
found = [in_child(lambda: torch.equal(shared(x, n), torch.sin(x) + n)) for n in range(15)]
done.set()
for thread in threads:
    thread.join()
assert set(found) == {0}, found
""")
