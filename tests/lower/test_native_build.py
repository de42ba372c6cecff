"""Building kernels: the compiler that is there, its flags, several files at once, and what happens without one."""

import ast
import ctypes
import mmap
import os
import subprocess
import sys
import warnings

import pytest
import torch

import bothways
from bothways.backends.native import native
from bothways.building import build as building
from bothways.building import toolchain
from bothways.building.build import CSource, Function, build
from bothways.building.declarations import FUNCTIONS, prelude
from bothways.errors import BuildFailed, KernelWarning, NoCompiler, warn_once
from bothways.lower.dialects.c.prelude import HELPERS
from bothways.testing import same


def forget_what_is_loaded():
    """As a new process would start."""
    building._loaded.clear()
    building._options.clear()
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    forget_what_is_loaded()
    yield
    forget_what_is_loaded()


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A compiler that writes down how it was called; a line of shell may come before the call."""

    def install(first=":"):
        real, log, script = toolchain.compiler()[0], tmp_path / "calls", tmp_path / "recording-cc"
        script.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{first}\nexec {real} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return lambda: log.read_text().splitlines() if log.exists() else []

    return install


def returning(expression, parameter="int x"):
    return CSource((), (f"int answer({parameter}) {{ return {expression}; }}\n",))


def test_the_cache_and_the_compiler_are_looked_up_once_for_a_library(monkeypatch):
    looked, wanted = [], ("open_cache", "working_tools")
    for name in wanted:
        original = getattr(building, name)

        def noted(*args, name=name, original=original):
            looked.append(name)
            return original(*args)

        monkeypatch.setattr(building, name, noted)
    for _ in range(2):
        looked.clear()
        assert build(returning("3 * x")).answer(2) == 6
        assert tuple(looked) == wanted


def test_a_library_is_built_and_called(recorded):
    calls = recorded()
    assert build(returning("2 * x")).answer(21) == 42
    compiled, linked = calls()
    assert " -c 0.c " in compiled and " -shared 0.o " in f" {linked}"
    build(returning("2 * x"))
    assert len(calls()) == 2  # it was loaded already


HEAPS = """\
void *memset(void *, int, __SIZE_TYPE__);
int filled(long n) {
    char *memory = malloc(n);
    memset(memory, 7, n);
    int sum = memory[0] + memory[n - 1];
    free(memory);
    return sum;
}
unsigned __int128 divided(unsigned __int128 x, unsigned __int128 y) { return x / y; }
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="linked in another way")
@pytest.mark.parametrize("refuses", [False, True])
def test_the_c_library_is_the_one_that_python_has(refuses, recorded):
    """The linker need not read it; what a compiler's own library has to add is there all the same."""
    calls = recorded('case "$*" in *-nostdlib*) exit 1;; esac' if refuses else ":")
    assert build(CSource((), (HEAPS,))).filled(1000) == 14
    assert ("-nostdlib" in calls()[-1]) != refuses


def test_cc_may_hold_arguments(monkeypatch):
    monkeypatch.setenv("CC", f"{toolchain.compiler()[0]} -DANSWER=42 '-DSPACED=1 + 1'")
    assert build(returning("ANSWER + SPACED")).answer(0) == 44


def test_nan_infinity_and_signed_zeros_mean_what_they_mean():
    source = CSource((), ("int kinds(double x) { return (x != x) + 2 * (x - x != 0) + 4 * (1 / (x + 0.0) < 0); }\n",))
    kinds = build(source).kinds
    kinds.argtypes = [ctypes.c_double]
    values = [1.0, float("nan"), float("inf"), -0.0]
    assert [kinds(value) for value in values] == [0, 3, 2, 0]
    negative_zero = build(CSource((), ("int sign(double x) { return 1 / (x * 1.0) < 0; }\n",))).sign
    negative_zero.argtypes = [ctypes.c_double]
    assert [negative_zero(0.0), negative_zero(-0.0)] == [0, 1]


def test_every_helper_and_function_compiles_and_comes_with_what_it_uses():
    names = [*HELPERS, *FUNCTIONS]
    text = "const void *addresses[] = {" + ", ".join(FUNCTIONS) + "};\n// " + " ".join(names) + "\n"
    source = CSource((), (text,), HELPERS)
    ctypes.c_void_p.in_dll(build(source), "addresses")


def test_only_what_is_named_is_written():
    text = prelude("float y = round_bfloat16(expf(x));", {"expf", "sinf"}.intersection, HELPERS)
    assert "#pragma omp declare simd notinbranch\nfloat expf(float);" in text
    by_a_helper = prelude("logaddexp_float(a, b)", {"expf"}.intersection, HELPERS)
    assert "simd notinbranch\nfloat expf" in by_a_helper
    assert "sinf" not in text and "max_float" not in text and "#include" not in text
    assert text.index("float_of(uint32_t") < text.index("round_bfloat16(float")  # used by the one that is named
    assert "declare simd" not in prelude("float y = expf(x);", set().intersection)


def test_many_kernels_are_compiled_side_by_side_and_linked_once(recorded, monkeypatch):
    calls = recorded()
    monkeypatch.setattr(building, "cpus", lambda: 3)
    padding = "// and so on\n" * (building.UNIT // 13)
    kernels = [Function("", f"void kernel_{n}(int *x)", f"*x += {10**n};\n{padding}") for n in range(5)]
    run = "void run(int *x) { " + " ".join(f"kernel_{n}(x);" for n in range(5)) + " }\n"
    source = CSource(tuple(kernels), (run,))
    library, number = build(source), ctypes.c_int(0)
    library.run(ctypes.byref(number))
    assert number.value == 11111
    assert [sum(" -c " in call for call in calls()), len(calls())] == [3, 4]
    assert not hasattr(library, "kernel_0")  # kernels are not exported


def test_small_graphs_are_one_file():
    kernels = tuple(Function("", f"void kernel_{n}(int *x)", "*x = 0;") for n in range(50))
    assert len(CSource(kernels, ()).units(8)) == 1


def test_a_source_that_does_not_compile_says_what_the_compiler_said():
    with pytest.raises(BuildFailed, match="not_declared"):
        build(returning("not_declared"))


# Threads ---------------------------------------------------------------------------------------------------

THREADS = CSource((), ("int omp_get_max_threads(void);\nint threads(void) { return omp_get_max_threads(); }\n",))


@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="this PyTorch was built without OpenMP")
def test_kernels_have_as_many_threads_as_pytorch():
    threads, before = build(THREADS).threads, torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            assert threads() == number
    finally:
        torch.set_num_threads(before)


def test_the_runtime_pytorch_brought_is_linked_whatever_it_is_called(tmp_path, monkeypatch):
    runtime = toolchain.openmp_runtime()
    if runtime is None or not runtime.endswith("libgomp.so.1"):
        pytest.skip("the name inside the library is edited for this test")
    renamed = tmp_path / "libgomX.so.1"
    with open(runtime, "rb") as file:
        renamed.write_bytes(file.read().replace(b"libgomp.so.1\0", b"libgomX.so.1\0"))
    ctypes.CDLL(str(renamed))  # as PyTorch does with its own
    monkeypatch.setattr(toolchain, "openmp_runtime", lambda: str(renamed))
    library = build(THREADS)
    with open(library._name, "rb") as file:
        content = file.read()
    assert b"libgomX.so.1\0" in content and b"libgomp.so.1\0" not in content


def test_the_runtime_is_found_though_files_are_mapped_whose_names_are_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/omp \xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("names of files are text here")
    with open(folder + b"/data", "w+b") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), mmap.PAGESIZE):
            assert toolchain.openmp_runtime.__wrapped__() == toolchain.openmp_runtime()


def test_a_compiler_without_openmp_is_used_without_it(recorded):
    calls = recorded('case " $* " in *" -fopenmp "*) echo no OpenMP here >&2; exit 1;; esac')
    loop = "#pragma omp parallel for reduction(+ : sum)\nfor (int i = 0; i < x; ++i) sum += i;\n"
    sums = CSource((), (f"int sums(int x) {{\nint sum = 0;\n{loop}return sum;\n}}\n",))
    with pytest.warns(KernelWarning, match="one thread"):
        assert build(sums).sums(5) == 10
    before = len(calls())
    forget_what_is_loaded()
    with pytest.warns(KernelWarning, match="one thread"):
        assert build(returning("x + 1")).answer(1) == 2
    assert len(calls()) == before + 2  # what the compiler can do is known from the cache


def test_a_compiler_without_vector_math_is_used_without_it(recorded):
    recorded('case " $* " in *" -lmvec "*) exit 1;; esac')
    loop = "#pragma omp simd\nfor (int i = 0; i < 64; ++i) x[i] = expf(x[i]);\n"
    source = CSource((), (f"void exps(float *x) {{\n{loop}}}\n",))
    x = torch.randn(64)
    expected = x.exp()
    build(source).exps(ctypes.c_void_p(x.data_ptr()))
    torch.testing.assert_close(x, expected)


# No compiler -----------------------------------------------------------------------------------------------


def loss(x, w):
    return ((x * w).sin().exp() + 1).sum()


@pytest.mark.parametrize("cc", ["no-such-compiler", "false"])
def test_without_a_compiler_there_is_one_warning_and_the_right_result(cc, monkeypatch):
    monkeypatch.setenv("CC", cc)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for shape in ((3, 4), (5, 6)):
            x, w = torch.randn(shape), torch.randn(shape, requires_grad=True)
            twin = w.detach().clone().requires_grad_()
            result, expected = bothways.compile(loss, backend=native)(x, w), loss(x, twin)
            result.backward(), expected.backward()
            assert same(result, expected) and same(w.grad, twin.grad)
    assert ["install gcc" in str(warning.message) for warning in seen if warning.category is KernelWarning] == [True]


def test_without_a_compiler_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompiler, match="there is no C compiler\n  hint: install gcc or clang .* set CC"):
        build(returning("x"))


# What people read ------------------------------------------------------------------------------------------


def test_dump_writes_c_and_python_for_each_graph(tmp_path, monkeypatch):
    folder = tmp_path / "dump"
    monkeypatch.setenv("BOTHWAYS_DUMP", str(folder))
    w = torch.randn(8, 8, requires_grad=True)
    bothways.compile(lambda x, w: (x @ w).tanh().sum(), backend=native)(torch.randn(8, 8), w).backward()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["001_forward.c", "001_forward.py", "002_backward.c", "002_backward.py"]
    program = (folder / "001_forward.py").read_text()
    ast.parse(program)
    assert "# Functions named new_... make tensors" in program and "001_forward.c" in program
    assert "tanhf(" in (folder / "001_forward.c").read_text()
    for name in names[::2]:  # it is the C that was compiled
        command = [*toolchain.compiler(), "-fopenmp", "-Wall", "-Werror", "-Wno-unused", "-fsyntax-only", name]
        assert subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr == ""


def test_the_numbers_of_a_dump_go_on_where_another_process_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_DUMP", str(tmp_path / "dump"))
    for size in (2, 3):
        bothways.compile(lambda x: x.sin() + 1, backend=native)(torch.randn(size))
    assert sorted(path.name for path in (tmp_path / "dump").glob("*.c")) == ["001_forward.c", "002_forward.c"]
