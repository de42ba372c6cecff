"""Programs that are forgotten while calls are still in them."""

import gc
import sys
import threading
import weakref

import torch

import bothways
from bothways.testing import same


def test_reset_in_another_thread_leaves_running_calls_alone():
    compiled = bothways.compile(lambda x, n: torch.sin(x * n) + 1, backend="eager", dynamic=False)
    x, wrong, done = torch.ones(4), [], threading.Event()
    expected = torch.sin(x * 2) + 1

    def work():
        while not done.is_set():
            try:
                if not same(compiled(x, 2), expected):
                    wrong.append("another answer")
            except Exception as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(150):
            compiled.__bothways__.reset()
            done.wait(0.002)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []


def test_reset_by_what_the_program_calls():
    def backend(graph, inputs):
        def run(*args):
            compiled.__bothways__.reset()
            return graph(*args)

        return run

    def program(x, log):
        y = x * 2
        log.append(y)
        print(end="")
        return torch.sin(y) + 1

    compiled = bothways.compile(program, backend=backend)
    x = torch.ones(3)
    for _ in range(3):
        plain, mine = [], []
        assert same(compiled(x, mine), program(x, plain))
        assert same(mine, plain)


def test_what_a_forgotten_program_holds_is_let_go_of():
    class Backend:
        def __call__(self, graph, inputs):
            def run(*args):
                return graph(*args)

            self.run = weakref.ref(run)
            return run

    backend = Backend()
    compiled = bothways.compile(lambda x: x + 1, backend=backend)
    compiled(torch.ones(2))
    first = backend.run
    assert first() is not None
    bothways.reset()
    gc.collect()
    assert first() is None


def test_programs_share_names_when_one_of_them_is_dropped():
    def program(x, n):
        return helper(x * n) + 1

    def helper(y):
        print(end="")
        return torch.cos(y)

    compiled, x = bothways.compile(program, backend="eager", dynamic=False), torch.ones(2)
    for n in (2, 3):
        assert same(compiled(x, n), program(x, n))
    dispatcher = compiled.__bothways__.dispatcher
    dispatcher.drop(dispatcher.programs[1])
    for n in (2, 3, 2):
        assert same(compiled(x, n), program(x, n))


def test_reset_lets_go_of_what_was_compiled_for_captured_backwards():
    compiled = []

    def compiler(module):
        compiled.append(bothways.compile(module, backend="eager"))
        return compiled[-1]

    def gradient():
        x = torch.arange(3.0, requires_grad=True)
        x.sin().sum().backward()
        return x.grad

    expected = gradient()
    with bothways.autograd.capture(compiler):
        assert same(gradient(), expected) and same(gradient(), expected)
        gone = weakref.ref(compiled.pop())
        assert not compiled, "the second backward is the first one's program"
        bothways.reset()
        gc.collect()
        assert gone() is None
        assert same(gradient(), expected)
        assert len(compiled) == 1


def test_a_function_that_starts_again_before_it_was_called_is_what_it_was():
    calls = []

    def plain(x):
        return x * len(calls)

    compiled = bothways.compile(plain, backend="eager")
    before = compiled.__code__
    bothways.reset()
    assert compiled.__code__ is before
    x = torch.ones(3)
    for _ in range(2):
        assert same(compiled(x), plain(x))
        assert compiled.__code__ is not before and len(bothways.history(compiled)) == 1
        calls.append(1)
        bothways.reset()
        assert bothways.history(compiled) == []
        before = compiled.__code__
