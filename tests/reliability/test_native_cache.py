"""Kernels on disk: found by the next process, rebuilt when damaged, never loaded from others, held to a size."""

import multiprocessing
import os
import re
import threading
import warnings
from pathlib import Path

import pytest
from pythons import run_python

from bothways.__main__ import main
from bothways.building import build as building
from bothways.building import toolchain
from bothways.building.build import CSource, build
from bothways.cache import disk as caching
from bothways.cache.disk import Cache, directory
from bothways.config import config
from bothways.errors import KernelWarning

ROOT = Path(__file__).parent.parent.parent
TWICE = CSource((), ("int twice(int x) { return 2 * x; }\n",))


FORKING = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def calls(tmp_path, monkeypatch):
    """How often the compiler was called."""
    log, script = tmp_path / "calls", tmp_path / "recording-cc"
    monkeypatch.delenv("CC", raising=False)
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {toolchain.compiler()[0]} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return lambda: len(log.read_text().splitlines()) if log.exists() else 0


def entry_of(root):
    (found,) = [path for path in root.iterdir() if caching.is_key(path.name)]
    return found


def build_and_tell(results, start=None):
    if start is not None:
        start.wait()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        answer = build(TWICE).twice(21)
    results.put((answer, " ".join(str(warning.message) for warning in seen if warning.category is KernelWarning)))


def build_in_processes(count=1):
    """Build in new processes that start at once; returns the warnings. Here, libraries would stay loaded."""
    start, results = FORKING.Barrier(count), FORKING.Queue()
    processes = [FORKING.Process(target=build_and_tell, args=(results, start)) for _ in range(count)]
    for process in processes:
        process.start()
    told = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert [answer for answer, _ in told] == [42] * count
    return " ".join(warning for _, warning in told if warning)


def builds(calls, warning=None):
    """Whether a new process calls the compiler. It gives a warning exactly when one is named."""
    before = calls()
    seen = build_in_processes()
    assert re.search(warning, seen) if warning else seen == ""
    return calls() > before


PROGRAM = """
import torch
import bothways
from bothways.backends.native import native

bothways.config.kernels_for_small_graphs = True
x = torch.linspace(0, 1, 12).requires_grad_()
y = bothways.compile(lambda x: (x.sin() + 1).exp().sum(), backend=native)(x)
y.backward()
print(y.item(), x.grad.sum().item())
"""


def test_a_second_process_does_not_call_the_compiler(calls):
    def run():
        return run_python(["-c", PROGRAM], cwd=ROOT, check=True)

    first, built = run(), calls()
    assert built == 6  # what is around calls, forward and backward, each compiled and linked
    assert run().stdout == first.stdout != ""
    assert calls() == built


def test_what_is_stored_is_a_source_and_a_library_for_the_user_alone(root):
    previous = os.umask(0)
    try:
        build_in_processes()
    finally:
        os.umask(previous)
    entry = entry_of(root)
    assert {path.name for path in entry.iterdir()} == {"kernels.c", "kernels.so", "checksums"}
    assert "return 2 * x;" in (entry / "kernels.c").read_text()
    assert [path.stat().st_mode & 0o777 for path in (root, entry)] == [0o700, 0o700]
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o600}


# Whether an entry may be loaded ----------------------------------------------------------------------------


def truncate(entry):
    (entry / "kernels.so").write_bytes((entry / "kernels.so").read_bytes()[:-1000])


def replace_by_other_code(entry):
    building._compile(CSource((), ("int twice(int x) { return 666; }\n",)), toolchain.toolchain(), entry)
    for path in entry.glob("0.*"):
        path.unlink()


def lose_a_file(entry):
    (entry / "kernels.so").unlink()


def lose_the_checksums(entry):
    (entry / "checksums").unlink()


@pytest.mark.parametrize("harm", [truncate, replace_by_other_code, lose_a_file, lose_the_checksums])
def test_a_damaged_entry_is_built_again(harm, root, calls):
    assert builds(calls)
    assert not builds(calls)
    harm(entry_of(root))
    assert builds(calls)
    assert not builds(calls)


@pytest.mark.parametrize("name", ["kernels.so", "checksums", "."])
def test_what_others_could_have_written_is_not_loaded(name, root, calls):
    build_in_processes()
    (entry_of(root) / name).chmod(0o777)
    assert builds(calls, warning="can be changed by other users")
    assert not builds(calls)


def test_a_link_to_elsewhere_is_not_loaded(root, calls, tmp_path):
    build_in_processes()
    library = entry_of(root) / "kernels.so"
    library.rename(tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    assert builds(calls, warning="can be changed by other users")


def test_a_folder_others_can_write_is_not_used(root, calls):
    build_in_processes()
    root.chmod(0o770)
    for _ in range(2):
        assert builds(calls, warning="kernels are not kept on disk.* BOTHWAYS_CACHE_DIR")


def test_a_folder_of_another_user_is_not_used(root, calls, monkeypatch):
    build_in_processes()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert builds(calls, warning="belongs to another user")


def test_a_folder_that_cannot_be_made_is_done_without(root, calls):
    root.write_text("a file stands here")
    assert builds(calls, warning="kernels are not kept on disk")


def test_a_library_that_cannot_be_loaded_from_there_is_built_elsewhere(root, calls, monkeypatch):
    load = building.Library

    def no_execution(path, **options):
        if path.startswith(str(root)):
            raise OSError("failed to map segment from shared object")
        return load(path, **options)

    monkeypatch.setattr(building, "Library", no_execution)
    assert builds(calls, warning="failed to map segment")


def test_the_cache_can_be_switched_off(root, calls):
    with config.patch(kernel_cache=False):
        assert builds(calls)
        assert builds(calls)
    assert not root.exists()


# What an entry depends on ----------------------------------------------------------------------------------


def change_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "cpu", lambda: "another one")


def change_the_flags(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "FLAGS", [*toolchain.FLAGS, "-O1"])


def change_the_arguments_of_cc(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{os.environ['CC']} -DX")


def update_the_compiler(monkeypatch, tmp_path):
    """Known by what its file holds: times differ between machines that have the same compiler."""
    with open(tmp_path / "recording-cc", "a") as file:
        file.write("\n# another version\n")


def update_pytorch(monkeypatch, tmp_path):
    (tmp_path / "libgomp.so.1").write_bytes(Path(toolchain.openmp_runtime()).read_bytes())
    monkeypatch.setattr(toolchain, "openmp_runtime", lambda: str(tmp_path / "libgomp.so.1"))


@pytest.mark.parametrize(
    "change", [change_the_cpu, change_the_flags, change_the_arguments_of_cc, update_the_compiler, update_pytorch]
)
def test_a_change_of_what_matters_builds_again(change, calls, monkeypatch, tmp_path):
    assert builds(calls)
    assert not builds(calls)
    change(monkeypatch, tmp_path)
    assert builds(calls)


# Several processes -----------------------------------------------------------------------------------------


def test_processes_that_build_the_same_at_once_all_get_it(root, calls):
    assert build_in_processes(6) == ""
    assert [path.name for path in root.iterdir()] == [entry_of(root).name]  # and nothing is left over
    assert not builds(calls)


def test_a_process_that_clears_while_others_build_harms_none(root, calls):
    done = threading.Event()

    def clear_all_the_time():
        while not done.is_set():
            Cache(root).clear()

    clearing = threading.Thread(target=clear_all_the_time)
    clearing.start()
    try:
        for _ in range(5):
            build_in_processes()
    finally:
        done.set()
        clearing.join()


# Size ------------------------------------------------------------------------------------------------------


def put(cache, digit, size, age):
    """An entry of ``size`` bytes that was used ``age`` seconds ago."""
    key = (digit * 64)[:64]
    with cache.workplace() as folder:
        (folder / "kernels.so").write_bytes(b"x" * size)
        cache.add(key, folder)
    if (cache.root / key).exists():
        when = (cache.root / key).stat().st_mtime - age
        os.utime(cache.root / key, (when, when))
    return key


@pytest.fixture
def cache(root):
    root.mkdir(mode=0o700)
    return Cache(root)


def test_what_was_not_used_for_the_longest_time_goes_first(cache):
    old, new, used = (put(cache, digit, 1000, age) for digit, age in (("a", 200), ("b", 100), ("c", 300)))
    assert cache.find(used) is not None  # which makes it the newest
    cache.shrink(2500)
    assert [cache.find(key) is not None for key in (old, new, used)] == [False, True, True]


def test_storing_keeps_the_cache_below_its_limit(cache):
    with config.patch(kernel_cache_megabytes=1):
        for number, digit in enumerate("123456"):
            put(cache, digit, 300_000, age=10 - number)
        put(cache, caching.LOOK_AT_SIZES, 300_000, age=0)
    assert cache.info().bytes <= 2**20
    assert sorted(path.name[0] for path in cache.root.iterdir()) == ["0", "5", "6"]


def test_what_a_crash_left_behind_is_removed_after_a_while(cache):
    fresh, old = cache.root / "unfinished-1", cache.root / "unfinished-2"
    for folder in (fresh, old):
        folder.mkdir()
        (folder / "0.c").write_text("")
    os.utime(old, (1, 1))
    cache.shrink(0)
    assert fresh.exists() and not old.exists()


# Where, and the command line -------------------------------------------------------------------------------


def test_where_the_cache_is(monkeypatch):
    assert directory() == Path(os.environ["BOTHWAYS_CACHE_DIR"])
    monkeypatch.delenv("BOTHWAYS_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    for given, expected in (("/caches", "/caches"), ("relative", "/home/me/.cache"), ("", "/home/me/.cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert directory() == Path(expected) / "bothways"


def test_info_and_clear(root, capsys):
    build_in_processes()
    (root / "a user's file").write_text("not ours")
    assert main(["cache", "info"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown == {"directory": str(root), "entries": "1", "size": "0.0 MiB", "limit": "256.0 MiB"}
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 1 entries from {root}\n"
    assert [path.name for path in root.iterdir()] == ["a user's file"]


def test_info_of_a_cache_that_was_never_used(root, capsys):
    assert main(["cache", "info"]) == 0
    assert "entries    0" in capsys.readouterr().out
    assert not root.exists()


def test_other_words_after_cache_are_explained(capsys):
    assert main(["cache", "empty"]) == 2
    assert "cache info | clear" in capsys.readouterr().err
