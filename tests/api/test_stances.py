"""``set_stance``: what compiled functions do with a call, for the whole process."""

import threading

import pytest
import torch

import bothways
from bothways.errors import InvalidOption, RecompileError


@pytest.fixture(autouse=True)
def default_stance():
    yield
    bothways.set_stance("default")


def make():
    """A function that tells whether it is compiled, and one program of it."""

    @bothways.compile(backend="eager", dynamic=False)
    def tells(x, n):
        return x + n + (100 if bothways.is_compiling() else 0)

    assert tells(torch.zeros(1), 1).item() == 101
    return tells


def test_force_eager_runs_plain_python_even_where_a_program_is():
    tells, x = make(), torch.zeros(1)
    bothways.set_stance("force_eager")
    assert tells(x, 1).item() == 1 and tells(x, n=2).item() == 2
    assert make_inside(x) == 1
    bothways.set_stance("default")
    assert tells(x, 1).item() == 101 and tells(x, 2).item() == 102


def make_inside(x):
    """A function that is compiled while the stance is taken."""
    return bothways.compile(lambda x: x + (100 if bothways.is_compiling() else 1), backend="eager")(x).item()


def test_a_function_compiled_under_force_eager_is_compiled_afterwards():
    with bothways.set_stance("force_eager"):
        function = bothways.compile(lambda x: x + (100 if bothways.is_compiling() else 1), backend="eager")
        assert function(torch.zeros(1)).item() == 1
    assert function(torch.zeros(1)).item() == 100


def test_eager_on_recompile_uses_what_there_is():
    tells, x = make(), torch.zeros(1)
    with bothways.set_stance("eager_on_recompile"):
        assert tells(x, 1).item() == 101
        assert tells(x, 2).item() == 2
    assert tells(x, 2).item() == 102


def test_fail_on_recompile_uses_what_there_is():
    tells, x = make(), torch.zeros(1)
    with bothways.set_stance("fail_on_recompile"):
        assert tells(x, 1).item() == 101
        with pytest.raises(RecompileError, match="fail_on_recompile"):
            tells(x, 2)
    assert tells(x, 2).item() == 102


def test_as_a_decorator_it_lasts_for_the_call():
    tells, x = make(), torch.zeros(1)

    @bothways.set_stance("force_eager")
    def plainly(x):
        return tells(x, 1)

    assert tells(x, 1).item() == 101
    assert plainly(x).item() == 1
    assert tells(x, 1).item() == 101

    @bothways.set_stance("force_eager")
    def fails():
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert tells(x, 1).item() == 101


def test_contexts_nest():
    tells, x = make(), torch.zeros(1)
    with bothways.set_stance("eager_on_recompile"):
        with bothways.set_stance("force_eager"):
            assert tells(x, 1).item() == 1
        assert tells(x, 1).item() == 101 and tells(x, 2).item() == 2
    assert tells(x, 2).item() == 102


def test_parts_after_breaks_follow_the_stance():
    @bothways.compile(backend="eager")
    def breaks(x):
        x = x + (100 if bothways.is_compiling() else 0)
        bothways.graph_break()
        return x + (1000 if bothways.is_compiling() else 0)

    x = torch.zeros(1)
    assert breaks(x).item() == 1100
    with bothways.set_stance("force_eager"):
        assert breaks(x).item() == 0
    assert breaks(x).item() == 1100


def test_inside_a_compiled_function_it_is_plain_python():
    tells = make()

    @bothways.compile(backend="eager")
    def function(x):
        y = x * 2
        with bothways.set_stance("force_eager"):
            y = tells(y, 1)
        return y + 1

    x = torch.zeros(1)
    for _ in range(2):
        assert function(x).item() == 2
        assert tells(x, 1).item() == 101


def test_another_backend_for_all():
    counting = bothways.testing.CompileCounter()
    model = torch.nn.Linear(2, 2)
    compiled, x = bothways.compile(model, backend="eager"), torch.ones(1, 2)
    expected = compiled(x)
    with bothways.set_stance("default", force_backend=counting):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected)
        assert counting.frame_count == 1
    compiled(torch.ones(3, 2))
    assert counting.frame_count == 1
    with bothways.set_stance(force_backend="aot_eager"):
        torch.testing.assert_close(compiled(x), expected)


def test_what_is_no_stance_raises_and_changes_nothing():
    tells, x = make(), torch.zeros(1)
    for given in ({"stance": "eager"}, {"stance": "force_eager", "force_backend": "eager"}):
        with pytest.raises(InvalidOption):
            bothways.set_stance(**given)
    assert tells(x, 1).item() == 101


def test_threads_that_call_while_the_stance_changes():
    tells, x = make(), torch.zeros(1)
    results = set()

    def call():
        results.update(tells(x, 1).item() for _ in range(300))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with bothways.set_stance("force_eager"):
            pass
    for thread in threads:
        thread.join()
    assert results <= {1.0, 101.0} and tells(x, 1).item() == 101
