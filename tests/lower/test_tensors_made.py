"""Tensors that kernels write to are made several at once, by C, and are what PyTorch's own functions make; loops that
are too short for threads make no team of them."""

import ctypes
import os
import sys
import threading
import weakref

import pytest
import torch
from pythons import run_python

import bothways
from bothways.building.build import CSource, library_of
from bothways.calls.call_library import call_library, making
from bothways.calls.tensors_made import LARGE, made_by_python, row_of

LIBRARY = call_library()
needs_library = pytest.mark.skipif(LIBRARY is None or not LIBRARY.makes_tensors, reason="not made by C here")

DTYPES = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split()
SHAPES = ["", "5", "_0", "0 3", "2 _1 4", "3 4 / 1 3", "2 _0 4 / _1 4 1", "1 5 / 0 1", "2 3 0 4", "_0 _0 / 5 40"]


def facts(tensor):
    version = None if tensor.is_inference() else tensor._version
    return (
        type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device,
        tensor.requires_grad, tensor.grad_fn, tensor.is_inference(), version, tensor.untyped_storage().nbytes(),
    )  # fmt: skip


@needs_library
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_what_pytorch_makes(shape, inference):
    rows = [f"{dtype} {shape}" for dtype in DTYPES]
    numbers = (7, 30)[: 2 if "_1" in shape else 1 if "_0" in shape else 0]
    with torch.inference_mode(inference):
        made, plain = making(rows)(*numbers), made_by_python([row_of(row) for row in rows])(*numbers)
        for one, other in zip(made, plain, strict=True):
            assert facts(one) == facts(other)
            assert one.data_ptr() % 64 == 0
            assert torch.equal(one.fill_(1), other.fill_(1))
        row = rows[0]
        assert facts(making([row])(*numbers)) == facts(made_by_python([row_of(row)])(*numbers))


@needs_library
def test_they_have_memory_of_their_own_and_go_when_let_go():
    make = making(["float32 _0 8", "float32 _0 8"])
    (one, other), later = make(4), make(4)
    memories = {tensor.data_ptr() for tensor in (one, other, *later)}
    assert len(memories) == 4
    gone = weakref.ref(one)
    del one
    assert gone() is None
    one = other.requires_grad_() * 2
    one.sum().backward()
    assert torch.equal(other.grad, torch.full((4, 8), 2.0))


@needs_library
def test_what_is_asked_wrongly_raises_what_pytorch_raises():
    make = making(["float32 _0 8", "uint8 _1"])
    for numbers in [(-1, 3), (3, -7), (1 << 60, 1 << 60)]:
        with pytest.raises(RuntimeError) as expected:
            torch.empty(numbers[0], 8), torch.empty(numbers[1], dtype=torch.uint8)
        with pytest.raises(RuntimeError) as found:
            make(*numbers)
        assert str(found.value).partition("\n")[0] == str(expected.value).partition("\n")[0]
    with pytest.raises(TypeError):
        make(1)
    with pytest.raises(TypeError):
        make("1", 2)


def test_large_ones_are_made_by_pytorch():
    one, other = making(["uint8 _0", "bool 2 _0"])(LARGE)
    assert (one.shape, other.shape) == ((LARGE,), (2, LARGE))
    assert one.fill_(3).sum() == 3 * LARGE
    assert making(["uint8 _0"])(LARGE + 1).shape == (LARGE + 1,)


def test_a_row_that_is_none_is_refused():
    for text in ("", "nothing", "float33 2", "float32 x", "float32 2 3 / 1"):
        with pytest.raises(ValueError):
            making([text])


@needs_library
def test_threads_make_them_at_once():
    make, wrong = making(["float32 _0 16"] * 3), []

    def work(size):
        for _ in range(300):
            made = make(size)
            for number, tensor in enumerate(made):
                tensor.fill_(size + number)
            wrong.extend(size for number, tensor in enumerate(made) if tensor.mean() != size + number)

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def several_kernels(x, weight):
    hidden = (x @ weight).relu() + 1
    return torch.cumsum(hidden, 0).exp().sum(1), hidden.mean(0)


RECALLED = """
import torch, bothways
from test_tensors_made import several_kernels
torch.manual_seed(0)
bothways.config.kernels_for_small_graphs = True
compiled = bothways.compile(several_kernels)
for size in (6, 6):
    x, weight = torch.randn(size, 8), torch.randn(8, 4)
    for one, other in zip(several_kernels(x, weight), compiled(x, weight)):
        torch.testing.assert_close(one, other)
print(sum(half.from_cache for half in bothways.explain(compiled).generated))
"""


def test_programs_from_the_cache_make_what_they_made(tmp_path):
    """The second process recalls the program; both are compared with plain PyTorch."""
    folders = os.pathsep.join(sys.path)
    environment = {**os.environ, "BOTHWAYS_CACHE_DIR": str(tmp_path), "PYTHONPATH": folders}
    first, second = (run_python(["-c", RECALLED], env=environment, check=True).stdout for _ in range(2))
    assert int(first) == 0 < int(second)


@needs_library
def test_python_makes_them_where_there_is_no_library(monkeypatch):
    monkeypatch.setattr(LIBRARY, "makes_tensors", False)
    x, weight = torch.randn(6, 8), torch.randn(8, 4)
    compiled = bothways.compile(several_kernels)
    for one, other in zip(several_kernels(x, weight), compiled(x, weight), strict=True):
        torch.testing.assert_close(one, other)


SHORT_AND_LONG = """
extern int omp_get_num_threads(void);
int most;
void run(const Given *given) {
    int64_t n = given[0].number;
    most = 0;
#pragma omp parallel for if(parallel : n >= 64) schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        const int threads = omp_get_num_threads();
#pragma omp critical
        if (threads > most) most = threads;
    }
}
int64_t seen(void) { return most; }
"""


def test_long_loops_have_threads_and_short_ones_run_here():
    library = library_of(CSource((), (SHORT_AND_LONG,)))
    run, seen = (ctypes.CFUNCTYPE(None, ctypes.c_char_p)(library.address("run")),
                 ctypes.CFUNCTYPE(ctypes.c_int64)(library.address("seen")))  # fmt: skip
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            for size in (63, 64, 1000, 1):
                run(size.to_bytes(8, "little"))
                assert seen() == (threads if size >= 64 else 1)
    finally:
        torch.set_num_threads(before)
