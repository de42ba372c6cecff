"""``warnings.catch_warnings`` and its filters inside compiled functions: who hears what, and what is left behind."""

import contextlib
import sys
import warnings

import pytest
import torch
from agreeing import agree

import bothways
from bothways.errors import Unsupported
from bothways.testing import RecordGraphs, same

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def said(function, *args):
    """What a call returns or raises, the warnings that leave it, and the filters it leaves behind."""
    vars(sys.modules[__name__]).pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        before = list(warnings.filters)
        try:
            result = function(*args)
        except Warning as error:
            result = repr(error)
        left = list(warnings.filters) == before
    return result, [(str(each.message), each.category, each.lineno) for each in heard], left


def observe(run, args):
    result, heard, left = said(run, *args)
    return {"result": result, "warnings": heard, "filters afterwards": left}


def agree_aloud(function, *inputs, backend="eager", fullgraph=True, graphs=None):
    recorded = RecordGraphs()
    backend = backend if graphs is None else recorded
    compiled = agree(function, observe, *inputs, inputs[-1], backend=backend, fullgraph=fullgraph)
    assert graphs is None or len(recorded) == graphs
    return compiled


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_warning_is_ignored_inside_and_heard_outside(backend):
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("inside", stacklevel=1)
            y = x * 2
        warnings.warn("outside", stacklevel=1)
        return y + 1

    agree_aloud(function, (X,), backend=backend)


def test_it_is_one_graph():
    def function(x):
        y = x * 2
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deprecated.*", category=UserWarning)
            y = y + 1
        return y * 3

    agree_aloud(function, (X,), graphs=1)


@pytest.mark.parametrize("action", ["always", "default", "once", "module", "ignore"])
def test_actions_of_filters_are_those_of_the_line(action):
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            for _ in range(3):
                warnings.warn("again", stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_a_filter_is_about_texts_categories_and_the_order_of_filters():
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", "old.*", DeprecationWarning)
            warnings.simplefilter("ignore", ImportWarning, append=True)
            warnings.warn("old thing", DeprecationWarning, stacklevel=1)
            warnings.warn("new thing", DeprecationWarning, stacklevel=1)
            warnings.warn("old thing", ImportWarning, stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_one_inside_of_another():
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with warnings.catch_warnings():
                warnings.resetwarnings()
                warnings.simplefilter("always")
                warnings.warn("inner", stacklevel=1)
            warnings.warn("outer", stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_the_filter_that_it_is_made_with():
    def function(x):
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            warnings.warn("old", DeprecationWarning, stacklevel=1)
            warnings.warn("user", stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_a_warning_that_is_an_error_inside_is_caught_by_the_line_itself():
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("inside", stacklevel=1)
            except UserWarning:
                return x * 2
        return x * 3

    agree_aloud(function, (X,), fullgraph=False)


def test_an_error_outside_is_none_where_it_is_ignored():
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("inside", stacklevel=1)
        return x * 2

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(compiled(X), function(X)) and same(compiled(X), function(X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("action", ["ignore", "always", "default"])
def test_an_operation_that_warns_is_under_the_filters_of_its_place(backend, action):
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            y = x.var(0)
        return y + x[:1].std(0)

    def one(x):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            return x[:1].std(0) * 2

    agree_aloud(function, (X,), backend=backend)
    agree_aloud(one, (X,), backend=backend, fullgraph=False)


def test_a_break_inside_goes_on_under_the_same_filters():
    seen = []

    def look(y):
        warnings.warn("from a break", stacklevel=1)
        seen.append(list(warnings.filters)[0][0])

    look = bothways.disable(look)

    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x * 2
            look(y)
            warnings.warn("after it", stacklevel=1)
            y = y + 1
        warnings.warn("outside", stacklevel=1)
        return y * 3

    agree_aloud(function, (X,), fullgraph=False)
    assert set(seen) == {"ignore"}


def test_what_was_said_before_a_break_is_said_before_it():
    order = []
    note = bothways.disable(lambda: order.append("break"))

    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *args, **kwargs: order.append("warning")
            warnings.warn("first", stacklevel=1)
            note()
        return x * 2

    def unpatched(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("first", stacklevel=1)
            note()
            warnings.warn("second", stacklevel=1)
        return x * 2

    agree_aloud(function, (X,), fullgraph=False)
    assert order == ["warning", "break"] * 4
    agree_aloud(unpatched, (X,), fullgraph=False)


def test_an_exception_leaves_it():
    def function(x):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.warn("inside", stacklevel=1)
                raise ValueError(x)
        except ValueError:
            warnings.warn("outside", stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_entered_by_an_exit_stack_and_by_name():
    def function(x):
        caught = warnings.catch_warnings()
        with contextlib.ExitStack() as stack:
            stack.enter_context(caught)
            warnings.simplefilter("ignore")
            warnings.warn("inside", stacklevel=1)
            return x * 2

    agree_aloud(function, (X,))


def test_what_is_recorded_is_left_to_python_and_nothing_is_an_empty_list():
    def quiet(x):
        with warnings.catch_warnings(record=True) as heard:
            y = x * 2
        return y + len(heard), heard

    def loud(x):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with warnings.catch_warnings():
                warnings.warn("inside", stacklevel=1)
        return x + len(heard)

    def broken(x):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            bothways.graph_break()
            warnings.warn("inside", stacklevel=1)
        return x + len(heard)

    def operation(x):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            y = x[:1].std(0)
        return y.nan_to_num() + len(heard)

    agree_aloud(quiet, (X,), graphs=1)
    for function in (loud, broken, operation):
        agree_aloud(function, (X,), fullgraph=False)


def test_one_that_is_returned():
    def function(x):
        return x * 2, warnings.catch_warnings(record=True)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        result, caught = compiled(X)
        assert same(result, X * 2) and type(caught) is warnings.catch_warnings
        with caught as heard:
            warnings.simplefilter("always")
            warnings.warn("heard", stacklevel=1)
        assert len(heard) == 1


def test_changing_filters_for_good_is_left_to_python():
    def for_good(x):
        warnings.simplefilter("ignore", ImportWarning)
        return x * 2

    agree_aloud(for_good, (X,), fullgraph=False)
    with pytest.raises(Unsupported, match="changes the filters for good"):
        bothways.compile(for_good, backend="eager", fullgraph=True)(X)


def test_filters_that_python_refuses_are_its_own_errors():
    def function(x):
        with warnings.catch_warnings():
            try:
                warnings.simplefilter("ignored")
            except (AssertionError, ValueError):
                return x * 2
        return x * 3

    agree_aloud(function, (X,), fullgraph=False)


def test_a_custom_function_inside():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            warnings.warn("in forward", stacklevel=1)
            return x * 2 + x[:1].std(0).nan_to_num()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = Twice.apply(x)
        return y + 1

    agree_aloud(function, (X,), fullgraph=False)


def test_a_function_that_is_allowed_in_the_graph_warns_under_the_filters_of_its_place():
    @bothways.allow_in_graph
    def warned(x):
        warnings.warn("in the graph", stacklevel=1)
        return x * 2

    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return warned(x) + 1

    agree_aloud(function, (X,), fullgraph=False)


SETTINGS = {
    "threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest", "high")),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, (False, True)),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_is_asked_for_inside_is_guarded(setting):
    ask, change, values = SETTINGS[setting]

    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x + 1, ask()

    before, compiled = ask(), bothways.compile(function, backend="eager", fullgraph=True)
    try:
        for value in (*values, *values):
            change(value)
            assert compiled(X)[1] == value
    finally:
        change(before)
    assert len(bothways.history(compiled)) == 2
