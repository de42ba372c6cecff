"""What libraries work in is taken out of PyTorch's table for one stream alone: the table of a version that has no way
of its own for that, as C++ lays it out."""

import ctypes
import shutil
import subprocess
import threading

import pytest

from bothways.replay.workspaces import _taking_out

TABLE = r"""
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <vector>
struct Memory {  // as c10::DataPtr is laid out
    void *data;
    std::unique_ptr<void, void (*)(void *)> owner;
    short device;
};
struct Table {
    std::map<std::tuple<void *, void *>, Memory> map;
    std::shared_mutex mutex;
};
static std::vector<long> released;
static void release(void *owner) { released.push_back((long)owner); }
extern "C" {
void *make() { return new Table; }
void add(Table *table, long handle, long stream, long memory) {
    std::unique_lock<std::shared_mutex> lock(table->mutex);
    void *at = (void *)memory;
    table->map.try_emplace({(void *)handle, (void *)stream}, Memory{at, {at, release}, 0});
}
long find(Table *table, long handle, long stream) {
    std::shared_lock<std::shared_mutex> lock(table->mutex);
    auto found = table->map.find({(void *)handle, (void *)stream});
    return found == table->map.end() ? 0 : (long)found->second.data;
}
long size(Table *table) {
    return std::distance(table->map.begin(), table->map.end()) == (long)table->map.size() ? table->map.size() : -1;
}
long count_of_released() { return released.size(); }
long released_at(long place) { return released[place]; }
void clear(Table *table) { table->map.clear(); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("table")
    (folder / "table.cpp").write_text(TABLE)
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "table.cpp", "-o", "table.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "table.so"))
    for name in ("make", "add", "find", "size", "count_of_released", "released_at", "clear"):
        function = getattr(library, name)
        function.restype = ctypes.c_void_p if name == "make" else ctypes.c_long
        table = [ctypes.c_void_p] if name in ("add", "find", "size", "clear") else []
        function.argtypes = table + [ctypes.c_long] * {"add": 3, "find": 2, "released_at": 1}.get(name, 0)
    return library


def released(library, since):
    return [library.released_at(place) for place in range(since, library.count_of_released())]


@pytest.mark.parametrize("handles, streams", [(1, 1), (2, 2), (3, 7), (11, 13)])
def test_entries_of_a_stream_go_and_others_stay(library, handles, streams):
    take_out = _taking_out()
    table = library.make()
    entries = {
        (handle, stream): 1000 * handle + stream
        for handle in range(1, handles + 1)
        for stream in range(1, streams + 1)
    }
    for (handle, stream), memory in sorted(entries.items(), key=lambda item: hash((item[1], "mixed"))):
        library.add(table, handle, stream, memory)
    for gone in (streams, 1, streams + 1):
        before = library.count_of_released()
        expected = [memory for (_, stream), memory in entries.items() if stream == gone]
        entries = {key: memory for key, memory in entries.items() if key[1] != gone}
        assert take_out(table, gone) == len(expected)
        assert sorted(released(library, before)) == sorted(expected)
        assert library.size(table) == len(entries)
        assert all(library.find(table, *key) == memory for key, memory in entries.items())
        assert not library.find(table, 1, gone)
    library.add(table, 1, 1, 5)  # as the next product does
    assert library.find(table, 1, 1) == 5
    library.clear(table)
    assert library.size(table) == 0


def test_others_look_and_add_at_the_same_time(library):
    take_out = _taking_out()
    table = library.make()
    for handle in range(1, 20):
        library.add(table, handle, 7, handle)
    wrong = []

    def look():
        for turn in range(3000):
            library.add(table, 100 + turn % 50, 3, 9)
            if any(library.find(table, handle, 7) != handle for handle in (1, 10, 19)):
                wrong.append(turn)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        take_out(table, 3)
    for thread in threads:
        thread.join()
    take_out(table, 3)
    assert not wrong
    assert library.size(table) == 19
