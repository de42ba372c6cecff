"""What a compiled function takes, it gives back: libraries are unloaded, texts forgotten, files closed with it.

And never too early: not while a kernel runs in another thread, nor before an autograd graph has let go of its backward.
"""

import dataclasses
import gc
import linecache
import os
import sys
import threading
import traceback

import pytest
import torch

import bothways
from bothways.building import build as building
from bothways.building.build import CSource, build
from bothways.config import config
from bothways.lower.host.text import Text
from bothways.testing import same

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system's own list of what is loaded")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    gc.collect()


def kernels_mapped():
    with open("/proc/self/maps") as file:
        return sum("kernels.so" in line for line in file)


def texts_kept():
    return sum(name.startswith("<bothways native") for name in linecache.cache)


def taken():
    """Maps, texts and open files."""
    with open("/proc/self/maps") as file:
        maps = sum(1 for line in file if ".so" in line)
    return maps, len(linecache.cache), len(os.listdir("/proc/self/fd"))


def made(number, backend="native"):
    return bothways.compile(lambda x: ((x.sin() * number).exp() + 1).sum(), backend=backend)


def train(compiled):
    x = torch.linspace(0, 1, 5).requires_grad_()
    compiled(x).backward()
    return x.grad


@linux
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_functions_that_are_dropped_leave_nothing(backend):
    train(made(0.5, backend))
    gc.collect()
    before = taken()
    for number in range(12):
        train(made(number, backend))
    gc.collect()
    assert taken() == before


@linux
@pytest.mark.slow
def test_hundreds_of_functions_that_are_dropped_leave_nothing():
    train(made(0.5))
    gc.collect()
    before = taken()
    for number in range(300):  # most of them from the cache
        train(made(number % 20))
    gc.collect()
    assert taken() == before


@linux
def test_a_program_goes_without_the_garbage_collector():
    """The Python of a program, its library and its text refer to each other in no circle."""
    graph = torch.fx.symbolic_trace(lambda x, w: torch.mm(x, w).sin() * 2)
    inputs = [torch.randn(4, 4).double(), torch.randn(4, 4).double()]
    run = program_of(graph, inputs)
    expected = torch.mm(*inputs).sin() * 2
    gc.collect()
    gc.disable()
    try:
        before = kernels_mapped(), texts_kept()
        assert same(run(*inputs)[0], expected) and same(run(*inputs)[0], expected)
        del run
        # Two texts: that of the first call, and that of all others.
        assert kernels_mapped() < before[0] and texts_kept() == before[1] - 2
    finally:
        gc.enable()


def program_of(graph, inputs):
    from native_checking import cases_of

    from bothways.lower.dialects.c.dialect import C
    from bothways.lower.host.program import compile_graph

    [case] = cases_of("program", lambda *values: [graph(*values)], inputs, grad=False)
    return compile_graph(case.graph, case.given, dialect=C())


@linux
def test_reset_unloads_what_was_loaded():
    compiled = [made(number) for number in range(3)]
    for function in compiled:
        train(function)
    gc.collect()
    before = kernels_mapped(), texts_kept()
    bothways.reset()
    gc.collect()
    # Two programs: the second takes the number as an input. Forward and backward, two maps each.
    assert kernels_mapped() <= before[0] - 8 and texts_kept() == before[1] - 4
    assert same(train(compiled[1]), train(made(1, "eager")))


@linux
def test_a_library_takes_two_maps():
    gc.collect()
    before = kernels_mapped()
    library = build(CSource((), ("int twice(int x) { return 2 * x; }\n",)))
    assert kernels_mapped() == before + 2
    del library
    assert kernels_mapped() == before


def test_only_where_threads_forget_a_library_it_is_unloaded(monkeypatch):
    """LLVM's runtime remembers where a parallel region was; GNU's does not, and PyTorch holds it."""
    tools = building.toolchain()
    runtimes = {"/lib/libgomp.so.1": True, "/lib/libgomp-a34b3233.so.1": True, "/lib/libomp.so": False}
    for runtime, unloads in runtimes.items():
        monkeypatch.setattr("bothways.building.toolchain.openmp_runtime", lambda runtime=runtime: runtime)
        assert dataclasses.replace(tools, threads=True).unloads is unloads
        assert dataclasses.replace(tools, threads=False).unloads is True


def test_a_function_keeps_its_library():
    twice = build(CSource((), ("int twice(int x) { return 2 * x; }\n",))).twice
    gc.collect()
    assert twice(21) == 42


def test_one_library_serves_all_who_want_it():
    source = CSource((), ("int twice(int x) { return 2 * x; }\n",))
    one, other = build(source), build(source)
    assert one is other
    del one
    assert other.twice(21) == 42
    del other
    assert build(source).twice(21) == 42  # loaded again


def test_a_library_that_was_unloaded_is_loaded_from_the_cache_again(monkeypatch):
    train(made(3))
    gc.collect()
    monkeypatch.setattr(building, "_run_compiler", None)  # which is not called
    assert same(train(made(3)), train(made(3, "eager")))


def test_a_backward_outlives_the_function_it_belongs_to():
    x = torch.linspace(0, 1, 5).requires_grad_()
    compiled = made(2)
    compiled(x).backward(retain_graph=True)  # which compiles the backward
    loss = compiled(x)
    x.grad = None
    del compiled
    bothways.reset()
    gc.collect()
    loss.backward()
    assert same(x.grad, train(made(2, "eager")))


def test_a_kernel_runs_to_its_end_though_its_function_is_dropped():
    size = 1 << 20
    x = torch.rand(size)

    def function(x):
        for _ in range(20):
            x = (x.sin() * 1.5).exp().log1p()
        return x

    expected = function(x)
    for round in range(3):
        functions = [bothways.compile(function)]
        functions[0](x)
        results, started = [], threading.Event()

        def call(functions=functions, results=results, started=started):
            compiled = functions.pop()
            started.set()
            results.append(compiled(x))

        thread = threading.Thread(target=call)
        thread.start()
        started.wait()
        if round:
            bothways.reset()
        gc.collect()
        thread.join()
        torch.testing.assert_close(results[0], expected)


def test_threads_that_compile_call_and_drop_at_once():
    x, wrong = torch.rand(1 << 16), []
    parallel = 4

    def work(number):
        for step in range(6):
            factor = number * 10 + step
            compiled = bothways.compile(lambda x, factor=factor: (x.sin() * factor + 1).exp().sum())
            expected = (x.sin() * factor + 1).exp().sum()
            wrong.extend(1 for _ in range(3) if not torch.allclose(compiled(x), expected, equal_nan=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(parallel)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_the_cache_on_disk_as_well():
    with config.patch(kernel_cache=False):
        assert same(train(made(4)), train(made(4, "eager")))
        gc.collect()
        assert same(train(made(4)), train(made(4, "eager")))


def test_a_traceback_shows_the_program_as_long_as_it_is_there():
    """The text stays with the code, which whoever looks at it holds."""
    compiled = made(5)
    train(compiled)
    names = [name for name in linecache.cache if name.startswith("<bothways native")]
    assert names and all("def run(" in "".join(linecache.getlines(name)) for name in names)


def test_a_traceback_of_the_first_call_shows_the_text_of_that_call():
    from bothways.lower.dialects.c.dialect import C

    def shown(run):
        with pytest.raises(ZeroDivisionError) as caught:
            run(0)
        return traceback.extract_tb(caught.value.__traceback__)[-1].line

    text = Text("halves", "def run(x):\n    # as ever\n    return 1 / x\n", "", {}, False, False)
    first = "def run(x):\n    result = 2 / x\n    settle()\n    return result\n"
    before = texts_kept()
    run = text.function({}, {}, C(), first)
    assert shown(run) == "result = 2 / x"
    assert texts_kept() == before + 2
    assert (run(1), run(1)) == (2, 1)
    assert shown(run) == "return 1 / x"
    gc.collect()  # the first traceback
    assert texts_kept() == before + 1
    del run
    gc.collect()
    assert texts_kept() == before
