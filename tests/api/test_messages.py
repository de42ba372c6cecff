"""Logging and warnings inside compiled functions: the same messages as eager's, in order, after the graph."""

import functools
import inspect
import logging
import warnings

import pytest
import torch

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, same

LOG = logging.getLogger("bothways.tests.messages")
X = torch.ones(3)


@functools.cache
def warn_once(self, *args):
    self.warning(*args)


@pytest.fixture
def messages():
    """What is logged, while the test runs."""
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append((record.levelname, record.getMessage()))

    handler = Handler()
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield seen
    LOG.removeHandler(handler)


def test_what_is_logged(messages):
    def function(x):
        LOG.info("shape %s", tuple(x.shape))
        LOG.warning("about to %s", "add")
        LOG.log(logging.ERROR, "done")
        return x + 1

    function(X)
    expected = list(messages)
    counter = CompileCounter()
    compiled = bothways.compile(function, backend=counter, fullgraph=True)
    for _ in range(2):
        messages.clear()
        assert same(compiled(X), X + 1)
        assert messages == expected
    assert counter.frame_count == 1


def test_what_the_logger_drops_may_be_anything(messages):
    def function(x):
        LOG.debug("values %s", x)
        return x + (1 if LOG.isEnabledFor(logging.DEBUG) else 2)

    compiled = bothways.compile(function, backend="eager")
    assert same(compiled(X), X + 2) and not messages
    LOG.setLevel(logging.DEBUG)
    assert same(compiled(X), X + 1) and len(messages) == 1
    with pytest.raises(Unsupported, match="not constants"):
        bothways.compile(function, backend="eager", fullgraph=True)(X)


def test_a_tensor_that_is_logged_is_a_break_with_graphs_before_and_after(messages):
    def function(x):
        y = x * 2
        LOG.info("now %s", y)
        LOG.log(logging.INFO, "and %s", y.sum())
        return y + 1

    function(X)
    expected = list(messages)
    counter = CompileCounter()
    compiled = bothways.compile(function, backend=counter)
    for _ in range(2):
        messages.clear()
        assert same(compiled(X), X * 2 + 1)
        assert messages == expected
    assert counter.frame_count == 3
    assert not bothways.explain(compiled).plain_from_now_on


def test_a_message_that_is_logged_once(messages, monkeypatch):
    monkeypatch.setattr(logging.Logger, "warn_once", warn_once, raising=False)
    warn_once.cache_clear()

    def function(x):
        LOG.warn_once("only once")
        return x + 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(X)
    assert messages == [("WARNING", "only once")]


def test_nothing_is_logged_twice_when_the_function_raises(messages):
    def function(x, index):
        LOG.info("before")
        return x[index]

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    compiled(X, torch.tensor([1]))
    messages.clear()
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([7]))
    assert messages == [("INFO", "before")]


def warn_here(stacklevel):
    warnings.warn("look out", DeprecationWarning, stacklevel=stacklevel)


@pytest.mark.parametrize("stacklevel", [1, 2])
def test_warnings_name_the_line_that_warns(stacklevel):
    def function(x):
        warn_here(stacklevel)
        return x + 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as plain:
        warnings.simplefilter("always")
        function(X)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert same(compiled(X), X + 1)
        assert [str(w.message) for w in seen] == [str(w.message) for w in plain]
        assert [(w.category, w.filename, w.lineno) for w in seen] == [(w.category, w.filename, w.lineno) for w in plain]


def test_a_warning_is_shown_once_for_a_line():
    def function(x):
        warnings.warn("again", stacklevel=1)
        return x + 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        compiled(X), compiled(X)
    assert len(seen) == 1


@pytest.mark.parametrize("module, action", [("__main__", "error"), (__name__, "ignore"), (__name__, "error")])
def test_filters_of_python_itself_name_a_module_by_its_text(module, action):
    def function(x):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return x + 1

    for backend in ("eager", "aot_eager", "native"):
        compiled = bothways.compile(function, backend=backend)
        for call in (function, compiled, compiled):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                warnings.filters.insert(0, (action, None, DeprecationWarning, module, 0))
                if (module, action) == (__name__, "error"):
                    with pytest.raises(DeprecationWarning):
                        call(X)
                else:
                    assert same(call(X), X + 1)
            assert len(seen) == (module == "__main__")


def test_a_warning_that_is_an_error():
    def function(x):
        try:
            warnings.warn("stop", stacklevel=1)
        except UserWarning:
            return x - 1
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(bothways.compile(function, backend="eager")(X), X - 1)


# What libraries ask on the way


def test_a_cached_function_that_cannot_be_captured():
    @functools.cache
    def available(name):
        return len(open(__file__).readline()) > len(name)

    def function(x):
        return x + 1 if available("a") else x

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert same(compiled(X), X + 1) and same(compiled(X), X + 1)
    assert available.cache_info().misses == 1


def test_signatures():
    class Layer:
        def chunk(self, x, scale=2):
            return x * scale

    def function(layer, x):
        parameters = inspect.signature(layer.chunk).parameters
        return layer.chunk(x) * len(parameters), parameters["scale"].default, list(parameters)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        assert same(compiled(Layer(), X), function(Layer(), X))


def scaled(x, n: int):
    return x * n + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_is_the_python_it_was_made_from():
    scripted = torch.jit.script(scaled)

    def function(x):
        return scripted(x, 3)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert same(compiled(X), function(X))


def test_a_generator_that_only_catches_other_exceptions_may_be_dropped():
    def numbers(items):
        index = 0
        try:
            while True:
                yield items[index]
                index += 1
        except IndexError:
            return

    def function(x):
        return x * next(iter(numbers([2, 3])))

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert same(compiled(X), X * 2)

    def cleaning(items):
        try:
            yield from items
        except (GeneratorExit, IndexError):
            items.append(0)

    def drops(x):
        return x * next(cleaning([2, 3]))

    with pytest.raises(Unsupported, match="cleanup"):
        bothways.compile(drops, backend="eager", fullgraph=True)(X)
