"""Data that code makes sure of, as distributions do of their parameters: taken for granted, checked by the graph."""

import contextlib

import asserting
import pytest
import torch
from torch import distributions as D
from torch.overrides import TorchFunctionMode

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounterWithBackend, same

BACKENDS = ["eager", "aot_eager", "native"]


@pytest.fixture(autouse=True)
def _validated():
    """PyTorch's compiler turns the validation of distributions off when it is loaded, which another test may do."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


def log_probability(mean, scale, x):
    distribution = D.Normal(mean, scale)
    return distribution.log_prob(x).sum() + distribution.entropy().sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_are_validated(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(log_probability, backend=counter, fullgraph=True)
    ones = torch.ones(3)
    for scale in (ones * 1, -ones, ones * 2, -ones):
        plain, other = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        if scale[0] < 0:
            with pytest.raises(ValueError) as expected:
                log_probability(plain, scale, ones)
            with pytest.raises(ValueError) as caught:
                compiled(other, scale, ones)
            assert str(caught.value) == str(expected.value)
            continue
        expected, result = log_probability(plain, scale, ones), compiled(other, scale, ones)
        expected.backward(), result.backward()
        assert same(result, expected) and same(other.grad, plain.grad)
    assert counter.frame_count == 1


def test_what_the_user_does_about_it_happens():
    def function(x, scale, log):
        try:
            distribution = D.Normal(x, scale)
        except ValueError:
            log.append("refused")
            return x
        log.append("made")
        return distribution.log_prob(x)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for scale in (1.0, -1.0, 1.0):
        plain, other = [], []
        x, scale = torch.ones(2), torch.full((2,), scale)
        assert same(compiled(x, scale, other), function(x, scale, plain)) and other == plain


def test_random_numbers_are_drawn_once():
    def function(x, scale):
        noise = torch.rand(2)
        try:
            return D.Normal(x, scale).mean + noise
        except ValueError:
            return noise

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for scale in (1.0, -1.0):
        arguments = torch.ones(2), torch.full((2,), scale)
        torch.manual_seed(0)
        expected = function(*arguments), torch.rand(1)
        torch.manual_seed(0)
        assert same((compiled(*arguments), torch.rand(1)), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: D.Categorical(logits=x).log_prob(torch.tensor(1)),
        lambda x: D.Bernoulli(probs=x.sigmoid()).entropy(),
        lambda x: D.Gamma(x.exp(), x.exp()).entropy(),
        lambda x: D.Independent(D.Normal(x, 1.0), 1).log_prob(x),
        lambda x: D.kl_divergence(D.Normal(x, 1.0), D.Normal(0.0, x.exp())),
        lambda x: D.Uniform(x, x + 1).log_prob(x + 0.5),
    ],
)
def test_distributions(make):
    x = torch.tensor([0.5, -0.2, 0.1])
    assert same(bothways.compile(make, backend="eager", fullgraph=True)(x), make(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_inputs_are_changed_behind_what_is_made_sure_of(backend):
    def function(x, scale):
        mean = D.Normal(x * 1, scale).mean
        x.add_(1)
        return mean

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for scale in (torch.ones(2), torch.ones(2) * 2, -torch.ones(2), torch.ones(2)):
        inputs = torch.ones(2), torch.ones(2)
        for run, x in zip((function, compiled), inputs, strict=True):
            if (scale > 0).all():
                assert same(run(x, scale), torch.ones(2))
            else:
                with pytest.raises(ValueError, match="scale"):
                    run(x, scale)
        assert same(*inputs)
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_inputs_that_are_changed_before_are_put_back(backend):
    def function(x, scale):
        x.add_(1)
        return D.Normal(x, scale).mean

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for scale in (torch.ones(2), torch.ones(2) * 2, -torch.ones(2), torch.ones(2)):
        inputs = torch.ones(2), torch.ones(2)
        for run, x in zip((function, compiled), inputs, strict=True):
            if (scale > 0).all():
                assert same(run(x, scale), torch.full((2,), 2.0))
            else:
                with pytest.raises(ValueError, match="scale"):
                    run(x, scale)
        assert same(*inputs), "plain Python changes it once, whatever the graph has done"
    assert len(bothways.history(compiled)) == 1


def test_inputs_that_autograd_saw_changed_cannot_be_changed_twice():
    def function(x, y, scale):
        x.add_(y)
        return D.Normal(x, scale).mean

    def inputs():
        return torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2)

    with pytest.raises(Unsupported, match="cannot be undone"):
        bothways.compile(function, backend="eager", fullgraph=True)(*inputs())
    x, y, scale = inputs()
    assert same(bothways.compile(function, backend="eager")(x, y, scale), torch.full((2,), 2.0))
    x.sum().backward()
    assert y.grad.tolist() == [1, 1]


def test_tensors_made_inside_may_be_changed():
    def function(x, scale):
        y = torch.zeros(2)
        y.add_(1)
        return D.Normal(x + y, scale).mean

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x, x), x * 2)
    with pytest.raises(ValueError):
        compiled(x, -x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_an_assertion_on_data_is_taken_for_granted_and_checked(backend):
    compiled = bothways.compile(asserting.twice, backend=backend, fullgraph=True)
    for values in ([3.0, 4, 5], [3.0, 1, 1]):
        torch.testing.assert_close(compiled(torch.tensor(values)), asserting.twice(torch.tensor(values)))
    for values in ([1.0, 4, 5], [3.0, -7, 1]):
        with pytest.raises(AssertionError) as plain:
            asserting.twice(torch.tensor(values))
        with pytest.raises(AssertionError) as found:
            compiled(torch.tensor(values))
        assert str(found.value) == str(plain.value)
    assert len(bothways.history(compiled)) == 1


def test_what_comes_before_an_assertion_that_fails_happens_once():
    compiled = bothways.compile(asserting.caught, backend="eager", fullgraph=True)
    for value in (1.0, -1.0, 2.0):
        sides = [(run(torch.tensor(value), log := []), log) for run in (asserting.caught, compiled)]
        assert sides[0] == sides[1]


def test_an_assertion_before_a_change_is_in_the_graph():
    compiled = bothways.compile(asserting.before_a_change, backend="eager", fullgraph=True)
    for values in ([1.0, 2.0], [2.0, 3.0]):
        one, other = torch.tensor(values), torch.tensor(values)
        assert compiled(one).tolist() == asserting.before_a_change(other).tolist()
        assert one.tolist() == other.tolist()
    unchanged = torch.tensor([-1.0, 0.0])
    with pytest.raises(AssertionError):
        compiled(unchanged)
    assert unchanged.tolist() == [-1.0, 0.0]


def test_an_assertion_on_several_elements_raises_as_in_plain_python():
    with pytest.raises(RuntimeError, match="more than one value"):
        bothways.compile(asserting.of_several, backend="eager")(torch.ones(2))


def test_an_assertion_on_a_number_read_from_data():
    with bothways.config.patch(numbers_from_data=True):
        compiled = bothways.compile(asserting.about_a_number, backend="eager", fullgraph=True)
        assert compiled(torch.arange(5), torch.tensor(3)).tolist() == [0, 1, 2]
        with pytest.raises(AssertionError):
            compiled(torch.arange(5), torch.tensor(2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_torch_assert_is_given(backend):
    def function(x):
        torch._assert(len(x.shape) == 1, "not a vector")
        torch._assert(x.sum() > 0, "too small")
        return x + 1

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(AssertionError, match="too small"):
        compiled(-torch.ones(2))
    with pytest.raises(AssertionError, match="not a vector"):
        compiled(torch.ones(2, 2))


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Stubborn(torch.Tensor):
    def __bool__(self):
        return True


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_has_a_say_in_what_is_true_is_asked(backend):
    def program(x):
        assert x, "not so"
        return x + 1

    compiled = bothways.compile(program, backend=backend)
    for x in (torch.ones(1), torch.ones(1), torch.zeros(1)):
        seen = []
        for function in (program, compiled):
            with Seen() as mode, contextlib.suppress(AssertionError):
                function(x)
            seen.append(mode.names)
        assert seen[0] == seen[1] and "__bool__" in seen[0]
    for value in (1.0, 0.0):
        assert same(compiled(torch.full((1,), value).as_subclass(Stubborn)), torch.full((1,), value + 1))
