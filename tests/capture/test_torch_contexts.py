"""Grad modes, ``inference_mode`` and ``autocast``, as context managers, as decorators and as statements."""

import pytest
import torch
from agreeing import agree
from torch import nn

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, same

X = torch.arange(12.0).reshape(3, 4) / 10
torch.manual_seed(0)
LAYER = nn.Linear(4, 4)


def modes_agree(program, *args):
    """Plain and compiled agree on values, dtypes, requires_grad and inference, under either grad mode of the caller."""

    def observe(function, enabled):
        with torch.set_grad_enabled(enabled):
            results = function(*args)
            assert torch.is_grad_enabled() == enabled
        tensors = [part for part in results if isinstance(part, torch.Tensor)]
        return {
            "results": results,
            "whether they need gradients": [part.requires_grad for part in tensors],
            "whether they are of inference": [part.is_inference() for part in tensors],
        }

    agree(program, observe, True, True, False, programs=2, fullgraph=True)


def test_grad_modes_as_contexts():
    def program(x):
        with torch.no_grad():
            a = LAYER(x)
            with torch.enable_grad():
                b = LAYER(x)
        with torch.set_grad_enabled(False):
            c = LAYER(x)
        return a, b, c, LAYER(x), torch.is_grad_enabled()

    modes_agree(program, X)


def test_a_grad_mode_is_no_number():
    def program(x):
        try:
            torch.set_grad_enabled(1)
        except TypeError as error:
            return x * 2, str(error)

    modes_agree(program, X)


def test_grad_modes_as_decorators():
    @torch.no_grad()
    def without(x):
        return LAYER(x)

    @torch.enable_grad()
    def within(x):
        return LAYER(x)

    def program(x):
        @torch.no_grad()
        def inner(x):
            return LAYER(x)

        return without(x), within(x), inner(x), LAYER(x)

    modes_agree(program, X)


def test_set_grad_enabled_as_a_statement():
    def program(x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        y = LAYER(x)
        torch.set_grad_enabled(before)
        return y, LAYER(x)

    modes_agree(program, X)


def test_a_grad_mode_that_stays_is_an_effect():
    def program(x):
        torch.set_grad_enabled(False)
        return LAYER(x)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    try:
        assert not compiled(X).requires_grad and not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_an_exception_inside_a_context_leaves_it():
    def program(x):
        try:
            with torch.no_grad():
                raise ValueError
        except ValueError:
            return LAYER(x), torch.is_grad_enabled()

    modes_agree(program, X)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_a_capture_that_stops_inside_a_context_leaves_it(context):
    def program(x):
        with context():
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(Unsupported):
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


def test_inference_mode():
    @torch.inference_mode()
    def decorated(x):
        return LAYER(x)

    def program(x):
        with torch.inference_mode():
            a = LAYER(x)
            with torch.inference_mode(False):
                b = x * 2
        return a, b, decorated(x), LAYER(x)

    modes_agree(program, X)


def test_autocast():
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x):
        return LAYER(x)

    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = LAYER(x)
            with torch.amp.autocast("cpu", enabled=False):
                b = LAYER(x)
        return a, b, decorated(x), LAYER(x)

    modes_agree(program, X)


def test_the_callers_autocast_is_another_program():
    def program(x):
        return LAYER(x)

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    assert compiled(X).dtype == torch.float32
    with torch.autocast(X.device.type, dtype=torch.bfloat16):
        assert compiled(X).dtype == torch.bfloat16
    assert compiled(X).dtype == torch.float32 and counter.frame_count == 2


# A break where inference mode is on.


def modes():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def alone(x, seen):
    with torch.inference_mode():
        y = x + 1
        seen.append(modes())
        bothways.graph_break()
        seen.append(modes())
        y = y * 2
    return y


def inside_no_grad(x, seen):
    with torch.no_grad():
        with torch.inference_mode():
            y = x + 1
            bothways.graph_break()
            seen.append(modes())
        seen.append(modes())
        y = y * 2
    return y


def around_enable_grad(x, seen):
    with torch.inference_mode():
        with torch.enable_grad():
            y = x + 1
            bothways.graph_break()
            seen.append(modes())
        seen.append(modes())
        y = y * 2
    return y


def switched_off_inside(x, seen):
    with torch.inference_mode():
        y = x + 1
        with torch.no_grad(), torch.inference_mode(False):
            z = x * 2
            bothways.graph_break()
            seen.append(modes())
        seen.append(modes())
    return y, z


def left_by_an_exception(x, seen):
    try:
        with torch.inference_mode():
            y = x + 1
            seen.append(int("no number" if bothways.graph_break() is None else 1))
    except ValueError:
        seen.append(modes())
    return x * 2


NESTED = [alone, inside_no_grad, around_enable_grad, switched_off_inside, left_by_an_exception]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", NESTED)
def test_a_break_inside_of_inference_mode_leaves_every_mode_as_it_was(program, backend):
    compiled = bothways.compile(program, backend=backend)
    for grad in (True, True, False, True):
        x = torch.randn(3, requires_grad=True)
        results = []
        for function in (program, compiled):
            seen = []
            with torch.set_grad_enabled(grad):
                result = function(x, seen)
                assert modes() == (grad, False)
            found = result if isinstance(result, tuple) else (result,)
            kinds = [(each.requires_grad, each.is_inference()) for each in found]
            results.append(([each.detach() for each in found], kinds, seen))
        assert same(*results)


class Windows(nn.Module):
    """Takes views of a buffer, of what it is given and of what it computes, as evaluations do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(32.0).reshape(8, 4))

    def forward(self, x, begin):
        rows = self.table[begin : begin + x.shape[0]]
        left, right = (x.transpose(0, 1) @ rows).view(-1).chunk(2)
        return self.layer(left.reshape(2, 4)).t(), right.unflatten(0, (2, 4)), self.layer.weight.t() + x.flatten()[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("outside", [True, False])
def test_views_of_ordinary_tensors_in_inference_mode(outside, backend):
    module = Windows()
    compiled = bothways.compile(module, backend=backend)
    with torch.inference_mode(not outside):
        inputs = [torch.rand(3, 4), torch.rand(3, 4), torch.rand(2, 4)]
    for begin, x in enumerate([*inputs, *inputs]):
        with torch.inference_mode():
            expected, result = module(x, begin), compiled(x, begin)
        assert same(result, expected)
        assert [part.is_inference() for part in result] == [part.is_inference() for part in expected]
    assert [one.conclusion.value for one in bothways.history(compiled)] == ["a program"] * 3


REFUSED = {
    "a mode that is none": lambda: torch.autocast("cpu", enabled=()),
    "a number": lambda: torch.autocast("cpu", enabled=1),
    "a device that there is not": lambda: torch.autocast("nowhere"),
    "a device that is no name": lambda: torch.autocast(3),
    "no device": lambda: torch.autocast(),
    "an argument that there is not": lambda: torch.autocast("cpu", other=1),
    "what is no mode": lambda: torch.inference_mode(()),
    "two modes": lambda: torch.inference_mode(True, False),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_contexts_refuse_comes_to_its_handler(make):
    def program(x):
        try:
            with make():
                return x @ x
        except (TypeError, RuntimeError, ValueError) as error:
            return x + 1, type(error).__name__, str(error)

    def observe(function, x):
        return {"result": function(x), "autocast": torch.is_autocast_enabled("cpu")}

    agree(program, observe, X[:, :3], X[:, :3])


def test_inference_mode_takes_a_function():
    def doubled(x):
        return x * 2, torch.is_inference_mode_enabled()

    def program(x):
        return torch.inference_mode(doubled)(x)

    agree(program, lambda function, x: {"result": function(x)}, X, X)
