"""Compilers that fail now and then or for good, that lie about flags, that hang: people are told once, and results are
eager's.
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from agreeing import agree
from pythons import run_python

import bothways
from bothways.backends.native import native
from bothways.building import build as building
from bothways.building import compiling, toolchain
from bothways.building.build import CSource, build
from bothways.config import config
from bothways.errors import KernelWarning, NoCompiler, warn_once
from bothways.testing import same

ROOT = Path(__file__).parent.parent.parent
LARGEST = torch.full((8,), 2**31 - 1, dtype=torch.int32)


def forget():
    """As a new process would start."""
    building._loaded.clear()
    building._options.clear()
    building._troubles.clear()
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(building, "PAUSES", (0.0, 0.0))
    forget()
    yield tmp_path / "cache"
    forget()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Install a compiler that runs some lines of shell first; ``$n`` is how often it was called."""
    real = toolchain.compiler()[0]

    def install(lines):
        script, log = tmp_path / "cc", tmp_path / "calls"
        log.write_text("")
        count = f'echo "$PWD $@" >> {log}\nn=$(wc -l < {log})\n'
        script.write_text(f'#!/bin/sh\n{count}{lines}\nexec {real} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return lambda: log.read_text().splitlines()

    return install


def overflows(x):
    return ((x + 1) > x).int()


def said_while(*functions):
    """What people are told while some functions run."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for function in functions:
            function()
    return [str(warning.message) for warning in seen if issubclass(warning.category, KernelWarning)]


def check(function, *inputs):
    """Compiled and plain agree, twice; gives the compiled function."""
    return agree(function, lambda run, given: {"result": run(*given)}, inputs, inputs, backend=native)


def options_are_stored(cache):
    return any((entry / building.OPTIONS).exists() for entry in cache.iterdir())


# Flags ---------------------------------------------------------------------------------------------------------


def test_what_kernels_mean_is_part_of_every_set_of_flags():
    choices = [range(len(found)) for found in toolchain.options(toolchain.compiler()).values()]
    for chosen in itertools.product(*choices):
        tools = toolchain.toolchain(chosen)
        for command in (tools.compile_command("0.c", "0.o"), tools.link_command(["0.o"], "0.so")):
            assert set(toolchain.MEANING) <= set(command)


FAILURES = {
    "without a word": "exit 1",
    "out of memory": 'echo "cc1: out of memory allocating 65536 bytes" >&2; exit 1',
    "killed": "kill -9 $$",
    "its child was killed": 'echo "gcc: fatal error: Killed signal terminated program cc1" >&2; exit 1',
    "no process": 'echo "gcc: fatal error: cannot execute cc1: vfork: Resource temporarily unavailable" >&2; exit 1',
}


@pytest.mark.in_turn("times")
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("times", [1, 2, 3, 5, 8])
def test_runs_of_the_compiler_that_fail_leave_nothing_behind(failure, times, own_cache, compiler):
    compiler(f"[ $n -le {times} ] && {{ {FAILURES[failure]}; }}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # while it fails, ATen does it
        for number in range(3):
            check(lambda x, number=number: overflows(x) * number, LARGEST)
    best = toolchain.toolchain()
    assert building._options[best.identity] == toolchain.BEST and not options_are_stored(own_cache)
    forget()
    assert said_while(lambda: check(lambda x: overflows(x) + 1, LARGEST)) == []
    assert building.working_tools(building.open_cache()) == best


def test_a_process_that_cannot_be_started_is_started_again(own_cache, monkeypatch):
    start, refused = compiling.subprocess.Popen, [BlockingIOError(11, "again"), OSError(12, "no memory")]

    def popen(*args, **kwargs):
        if refused:
            raise refused.pop()
        return start(*args, **kwargs)

    monkeypatch.setattr(compiling.subprocess, "Popen", popen)
    assert said_while(lambda: check(overflows, LARGEST)) == []
    assert not refused and not options_are_stored(own_cache)


def test_a_compiler_that_never_works_is_not_asked_for_ever(compiler):
    calls = compiler("kill -9 $$")
    functions = [lambda x, n=n: x.sin() * n for n in range(8)]
    assert len(said_while(*(lambda f=f: check(f, torch.randn(4)) for f in functions))) == 1
    tried = len(calls())
    assert said_while(lambda: check(lambda x: x.cos() * 2, torch.randn(4))) == [] and len(calls()) == tried


def test_it_is_asked_again_after_a_few_failures(compiler):
    calls = compiler("[ $n -le 4 ] && kill -9 $$")
    assert len(said_while(lambda: check(overflows, LARGEST))) == 1  # one try more than it is given
    assert said_while(lambda: check(lambda x: overflows(x) * 2, LARGEST)) == []
    assert len(calls()) > 4


@pytest.mark.parametrize("flag", ["-O3", "-fno-trapping-math", "-w"])
def test_a_compiler_that_lacks_a_flag_computes_the_same(flag, own_cache, compiler):
    compiler(f'case " $* " in *" {flag} "*) echo "unknown option {flag}" >&2; exit 1;; esac')
    forget()
    x, y, z = (torch.randn(1000) for _ in range(3))
    assert said_while(lambda: check(overflows, LARGEST), lambda: check(lambda x, y, z: x * y - z, x, y, z)) == []
    assert options_are_stored(own_cache)  # that is how it is


@pytest.mark.parametrize("flag", toolchain.MEANING)
def test_a_compiler_that_cannot_compile_what_kernels_mean_is_not_used(flag, own_cache, compiler):
    compiler(f'case " $* " in *" {flag} "*) echo "unknown option {flag}" >&2; exit 1;; esac')
    told = said_while(lambda: check(overflows, LARGEST), lambda: check(lambda x: x.sin() * 2, torch.randn(4)))
    assert len(told) == 1 and "the C compiler does not work" in told[0]
    assert not own_cache.exists() or not options_are_stored(own_cache)


def test_a_compiler_that_takes_flags_and_ignores_them_is_found_out(compiler):
    real = toolchain.compiler()[0]
    without = 'for flag; do shift; [ "$flag" = -fwrapv ] || set -- "$@" "$flag"; done'
    compiler(f'case " $* " in *" -O3 "*) exit 1;; esac\n{without}\nexec {real} "$@"')
    told = said_while(lambda: check(overflows, LARGEST))
    assert len(told) == 1 and "does not compute what C" in told[0]


@pytest.mark.parametrize("arguments", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffp-contract=fast"])
def test_arguments_of_cc_do_not_change_what_kernels_mean(arguments, monkeypatch):
    monkeypatch.setenv("CC", f"{toolchain.compiler()[0]} {arguments}")
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-310, 5e-324, 1.0], dtype=torch.float64)
    check(lambda x: ((x != x) | (x - x != 0)) & (1 / (x + 0.0) > -1), special)
    check(lambda x: (x + x) * 0.5 + (-0.0), special)
    assert torch.tensor(5e-324, dtype=torch.float64) * 1 != 0  # this process was not told to flush such numbers


@pytest.mark.parametrize("cc", ["gcc 'x", '"', "gcc \\", "/", "/dev/null", "gcc\udcff"])
def test_a_cc_that_is_no_command_is_one_warning(cc, monkeypatch):
    monkeypatch.setenv("CC", cc)
    told = said_while(lambda: check(overflows, LARGEST), lambda: check(lambda x: x.sin() * 2, torch.randn(4)))
    assert len(told) == 1 and "there is no C compiler: CC=" in told[0] and "install gcc" in told[0]
    with pytest.raises(NoCompiler):
        build(CSource((), ("int x;\n",)))


def test_a_compiler_under_a_name_that_is_no_text(tmp_path, monkeypatch):
    script = tmp_path / "cc-\udcff"
    script.write_text(f'#!/bin/sh\nexec {toolchain.compiler()[0]} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert said_while(lambda: check(overflows, LARGEST)) == []


# Hanging -------------------------------------------------------------------------------------------------------

HANG = "sleep 987 & echo $! >> {children}; wait"


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    assert holds()


def test_a_compiler_that_hangs_is_stopped_and_aten_runs_the_graph(tmp_path, own_cache, compiler):
    calls = compiler(HANG.format(children=tmp_path / "children"))
    x = torch.randn(4, requires_grad=True)
    with config.patch(compiler_seconds=1):
        told = said_while(*(lambda n=n: check(lambda x: (x.sin() * n).exp(), x) for n in range(4)))
    assert len(told) == 1 and "config.compiler_seconds = 1" in told[0]
    assert len(calls()) == 2  # the graph, and a few lines to see whether it does anything at all
    wait_until(lambda: not any(map(is_running, children(tmp_path / "children"))))
    assert list(own_cache.glob("unfinished-*")) == []


def test_a_higher_limit_is_another_try(tmp_path, compiler):
    calls = compiler(f"[ $n -le 2 ] && {{ {HANG.format(children=tmp_path / 'children')}; }}")
    with config.patch(compiler_seconds=1):
        assert len(said_while(lambda: check(overflows, LARGEST))) == 1
    with config.patch(compiler_seconds=60):
        assert said_while(lambda: check(lambda x: overflows(x) + 1, LARGEST)) == []
    assert len(calls()) == 4


def test_a_graph_that_takes_too_long_does_not_stop_the_others(tmp_path, compiler):
    hang = HANG.format(children=tmp_path / "children")
    calls = compiler(f"[ -f 0.c ] && grep -q coshf 0.c && {{ {hang}; }}")
    with config.patch(compiler_seconds=2):
        told = said_while(lambda: check(lambda x: x.cosh() * 2, torch.randn(4)))
        assert len(told) == 1 and "was stopped" in told[0]
        before = len(calls())
        assert said_while(lambda: check(lambda x: x.sin() * 2, torch.randn(4))) == []
    assert len(calls()) == before + 2


def test_what_is_in_the_cache_is_used_though_the_compiler_hangs(tmp_path, compiler):
    compiler(":")
    check(overflows, LARGEST)
    script = Path(os.environ["CC"])
    facts = script.stat()
    hangs = f'#!/bin/sh\n{HANG.format(children=tmp_path / "children")}\n'
    script.write_text(hangs + "#" * (facts.st_size - len(hangs)))  # the same compiler, as far as its file tells
    os.utime(script, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    forget()
    with config.patch(compiler_seconds=1):
        assert len(said_while(lambda: check(lambda x: x.sin() * 2, torch.randn(4)))) == 1
        assert said_while(lambda: check(overflows, LARGEST)) == []


def test_threads_that_wait_for_the_same_function_go_on(tmp_path, compiler):
    compiler(HANG.format(children=tmp_path / "children"))
    x, results = torch.randn(4), []
    compiled = bothways.compile(lambda x: x.sin() * 3, backend=native)
    with config.patch(compiler_seconds=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=lambda: results.append(compiled(x))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(results) == 4 and all(same(result, x.sin() * 3) for result in results)


# Whoever starts the tests in the background may have Ctrl-C ignored, which processes inherit.
INTERRUPTED = """
import os, signal, sys, torch, bothways
signal.signal(signal.SIGINT, signal.default_int_handler)
bothways.config.kernels_for_small_graphs = True
compiled = bothways.compile(lambda x: (x.sin() + 1).exp())
x = torch.ones(3)
try:
    compiled(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.environ["CC"] = sys.argv[1]
assert torch.allclose(compiled(x), (x.sin() + 1).exp())
print("done", flush=True)
"""


def test_ctrl_c_ends_a_compiler_that_hangs(tmp_path, own_cache, compiler):
    """Press Ctrl-C while the compiler hangs."""
    real, numbers = toolchain.compiler()[0], tmp_path / "children"
    compiler(HANG.format(children=numbers))
    (tmp_path / "temporary").mkdir(mode=0o700)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, real], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: children(numbers), seconds=60)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert told.split() == ["interrupted", "done"] and process.returncode == 0
    wait_until(lambda: not any(map(is_running, children(numbers))))
    assert list(own_cache.glob("unfinished-*")) == [] and list((tmp_path / "temporary").iterdir()) == []


SLOW_START = """
import os, signal, subprocess, sys, time, threading
from pathlib import Path
from bothways.building import compiling
signal.signal(signal.SIGINT, signal.default_int_handler)
begin = subprocess._fork_exec

def slow(*args):
    number = begin(*args)
    time.sleep(0.3)  # a machine with much to do: the process runs, and its number is not known yet
    return number

subprocess._fork_exec = slow
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    compiling.run([["sh", "-c", f"echo $$ >> {sys.argv[1]}; sleep 60"]] * 4, Path(sys.argv[1]).parent, 30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_loses_no_compiler_that_is_being_started(tmp_path):
    numbers = tmp_path / "children"
    process = run_python(["-c", SLOW_START, str(numbers)], cwd=ROOT)
    assert process.stdout.split() == ["interrupted"], process.stderr
    assert 0 < len(children(numbers)) < 4
    wait_until(lambda: not any(map(is_running, children(numbers))))


def test_a_server_that_a_compiler_leaves_behind_is_neither_waited_for_nor_ended(tmp_path, compiler):
    compiler(f"sleep 20 & echo $! >> {tmp_path / 'children'}")
    begin = time.monotonic()
    check(overflows, LARGEST)
    assert any(map(is_running, children(tmp_path / "children"))) or time.monotonic() - begin > 15
    for pid in children(tmp_path / "children"):
        os.kill(pid, signal.SIGKILL)


def test_a_limit_of_nothing_is_none():
    with config.patch(compiler_seconds=0):
        assert said_while(lambda: check(overflows, LARGEST)) == []


# Disks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("only root may mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder, leave=0):
    """Fill a disk but for some bytes."""
    with open(folder / "large", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        if leave:
            file.truncate(max(0, file.tell() - leave))


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16384])
def test_a_full_disk_below_the_cache_means_the_temporary_folder(leave, small_disk, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(small_disk / "cache"))
    (small_disk / "cache").mkdir(mode=0o700)
    fill(small_disk, leave)
    x = torch.randn(4, requires_grad=True)
    held = []
    told = said_while(*(lambda n=n: held.append(check(lambda x: (x.sin() * n).exp(), x)) for n in range(2)))
    assert not any("report" in text for text in told) and any("No space left" in text for text in told)
    assert building._loaded and list((small_disk / "cache").glob("unfinished-*")) == []


def test_a_full_temporary_folder_means_the_cache(small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    fill(small_disk)
    assert said_while(lambda: check(overflows, LARGEST)) == []


def test_full_disks_everywhere_mean_aten(small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(small_disk / "cache"))
    (small_disk / "cache").mkdir(mode=0o700)
    fill(small_disk)
    told = said_while(lambda: check(overflows, LARGEST))
    assert len(told) == 1 and "No space left" in told[0] and "report" not in told[0]


@pytest.mark.parametrize("words", ["No space left on device", "something in a language that is not known"])
def test_a_compiler_that_cannot_write_to_the_cache_writes_elsewhere(words, own_cache, compiler):
    compiler(f'case "$PWD" in {own_cache}*) echo "{words}" >&2; exit 1;; esac')
    held = []
    told = said_while(lambda: held.append(check(overflows, LARGEST)))
    assert not any("report" in text for text in told) and building._loaded
    assert said_while(lambda: check(lambda x: overflows(x) * 2, LARGEST)) == []


# Warnings as errors --------------------------------------------------------------------------------------------


def test_where_warnings_are_errors_the_error_is_the_warning(own_cache):
    own_cache.mkdir(mode=0o700)
    own_cache.chmod(0o777)
    compiled = bothways.compile(overflows, backend=native)
    for _ in range(2):
        with warnings.catch_warnings(), pytest.raises(KernelWarning, match="kernels are not kept on disk: .*cache can"):
            warnings.simplefilter("error", KernelWarning)
            compiled(LARGEST)
    with pytest.warns(KernelWarning, match="kernels are not kept on disk"):
        assert same(compiled(LARGEST), overflows(LARGEST))


WARNINGS_ARE_ERRORS = """
import warnings
warnings.simplefilter("error", UserWarning)  # as python -W error::UserWarning
import torch, bothways
bothways.config.kernels_for_small_graphs = True
try:
    bothways.compile(lambda x: (x.sin() + 1).exp())(torch.ones(3))
except UserWarning as error:
    print(type(error).__name__, error)
"""


def test_in_a_new_process_as_well(own_cache):
    own_cache.mkdir(mode=0o700)
    own_cache.chmod(0o777)
    done = run_python(["-c", WARNINGS_ARE_ERRORS], cwd=ROOT, check=True)
    assert done.stdout.startswith("KernelWarning kernels are not kept on disk") and "bug" not in done.stdout
