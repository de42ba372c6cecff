"""What every test run needs: kernels cached in a folder of its own, a PyTorch that is awake, and turns."""

import contextlib
import functools
import gc
import logging
import os
import pathlib
import re
import tempfile
import types
import zlib


def place_of_the_cache():
    """A folder in memory, where there is one with room from which libraries may be loaded: files there cost a tenth."""
    place = "/dev/shm"
    try:
        system = os.statvfs(place)
    except OSError:
        return None
    has_room = system.f_bavail * system.f_frsize > 2 << 30 and os.access(place, os.W_OK)
    return place if has_room and not system.f_flag & os.ST_NOEXEC else None


# Set before torch and bothways are imported, for the processes that tests start as well; the first process sets it.
if "BOTHWAYS_CACHE_DIR" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="bothways-tests-", dir=place_of_the_cache())
    os.environ["BOTHWAYS_CACHE_DIR"] = _folder.name
# Workers share the cores: a thread that waits for another one sleeps, in place of keeping it from its core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Half a million objects come with PyTorch and the tests, and stay: no use to look through them while they come.
gc.disable()

import pytest  # noqa: E402
import torch  # noqa: E402

import bothways  # noqa: E402

# Tests are small; kernels are what most of them are about.
bothways.config.kernels_for_small_graphs = True

# The first time several threads enter MKL's vector functions at once, some compute with low accuracy.
torch.exp(torch.ones(16))


# Without these devices, each ``torch.manual_seed`` writes down from where it was called, three times.
for _device in (torch.cuda, torch.xpu, torch.mtia):
    if not _device.is_available():
        _device.traceback = types.SimpleNamespace(format_stack=list)


def pytest_addoption(parser):
    parser.addoption("--tensors-on", choices=["cpu", "cuda"], default="cpu", help="where tests make their tensors")


def pytest_configure(config):
    """Before test files are imported, whose own tensors lie there too. No mode: what is compiled sees plain calls."""
    if config.getoption("--tensors-on") == "cuda":
        if not torch.cuda.is_available():
            raise pytest.UsageError("--tensors-on cuda: there is no GPU here")
        config.uncaptured = os.dup(2)  # where it is said what ends a process: nothing is captured here
        torch.set_default_tensor_type(torch.cuda.FloatTensor)


@pytest.fixture(autouse=True)
def nothing_happened_yet(request):
    """Functions of one code share programs, also with those of an earlier test that are not collected yet; and random
    numbers are the same whichever tests ran before."""
    bothways.reset()
    torch.manual_seed(0)
    yield
    if request.config.getoption("--tensors-on") == "cuda":
        end_after_a_device_assert(request.config)


def end_after_a_device_assert(config):
    """Nothing runs on a GPU in a process behind one: another worker goes on, and the test is named as what ended it."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        os.write(config.uncaptured, f"\n{os.environ.get('PYTEST_CURRENT_TEST')}: {said}\n".encode())
        os._exit(1)


@pytest.fixture
def kernels_for_all():
    """Kernels for graphs of any size, also of those that would run as captured since that is faster."""
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def pytest_collection_finish():
    """What a test leaves behind may stay for a while: those that ask for a collection have one."""
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays():
    """Half a million objects, PyTorch's and those of the tests, stay until the end: collections need not visit them.
    Nor what other files have loaded since: a collection that a test asks for is 6 ms, and was 150 ms."""
    gc.collect()
    gc.freeze()


class Logged(logging.Handler):
    """What is logged while a test runs that asks for it."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]

    @property
    def text(self):
        return "\n".join(self.messages)

    @contextlib.contextmanager
    def at_level(self, level, logger=None):
        chosen = logging.getLogger(logger)
        before = chosen.level
        chosen.setLevel(level)
        try:
            yield
        finally:
            chosen.setLevel(before)


@pytest.fixture
def caplog():
    """In the place of pytest's own, which listens to each of PyTorch's loggers six times a test, whoever asks: 2 ms."""
    logged = Logged()
    every = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    apart = [one for one in every if isinstance(one, logging.Logger) and (one.parent is None or not one.propagate)]
    for logger in apart:
        logger.addHandler(logged)
    yield logged
    for logger in apart:
        logger.removeHandler(logged)


# Where a backend is what a program runs on, rather than what a test is about, the cases of a test take turns with it.
ON_ANY_BACKEND = ("backward", "capture", "grad", "runtime", "steps", "symbols")
BACKENDS = {"eager", "aot_eager", "native"}


def is_about_cpus(item):
    """Whether a test says nothing of tensors on a GPU, by a list of those."""
    return about_cpus().match(f"{item.path.parent.name}/{item.nodeid.rpartition('/')[2]}") is not None


@functools.cache
def about_cpus():
    lines = (pathlib.Path(__file__).parent / "gpu" / "about_cpus.txt").read_text().splitlines()
    rows = [line.partition(": ")[0] for line in lines if line and not line.startswith("#")]
    return re.compile("|".join(re.escape(row).replace(r"\*", ".*") for row in rows))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Where cases take turns, ``make test`` runs each case once; all combinations are slow.

    ``@pytest.mark.in_turn("backend")``: the first case runs with the first backend, the second with the second, and
    each round begins one backend later, so that no value of a parameter keeps to one of them. A test of one case takes
    the one that falls to its name. ``@pytest.mark.every_backend`` keeps those of a test that is about them.
    """
    if config.getoption("--tensors-on") == "cuda":
        items[:] = [item for item in items if not is_about_cpus(item)]
    places = {}  # of a function's values of some parameters, in their order
    for item in items:
        name, turns = item.nodeid.partition("[")[0], {}
        marker = item.get_closest_marker("in_turn")
        if marker is None and "backend" not in getattr(item, "fixturenames", ()):
            continue
        for parametrized in item.iter_markers("parametrize"):
            names = parametrized.args[0]
            names = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
            known = places.setdefault((name, names), {})
            value = tuple(id(item.callspec.params[name]) for name in names)
            turns[names] = known.setdefault(value, len(known)), parametrized.args[1]
        if marker is not None:
            assert marker.args in turns, f"{item.nodeid} has no parameter {marker.args} by itself to take turns with"
        taken = marker.args if marker is not None else ("backend",)
        if marker is None and not is_on_any_backend(item, turns.get(taken)):
            continue
        turn, values = turns.pop(taken)
        others = [place for place, _ in turns.values()]
        first = sum(place + place // len(values) for place in others) if others else zlib.crc32(name.encode())
        if first % len(values) != turn:
            item.add_marker(pytest.mark.slow)


def is_on_any_backend(item, turn):
    """Whether the backend of a test is one of ours, and not what it is about."""
    if turn is None or item.path.parent.name not in ON_ANY_BACKEND or item.get_closest_marker("every_backend"):
        return False
    return all(isinstance(value, str) and value in BACKENDS for value in turn[1])
