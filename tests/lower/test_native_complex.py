"""Graphs with complex numbers in them: ATen computes those, and kernels all the rest."""

import pytest
import torch
from agreeing import agree
from seeding import seeded
from torch.autograd.profiler import profile

import bothways


def rotated(x, turns):
    """Rotary positions, as language models have them."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1], None]).flatten(3).type_as(x)


TURNS = torch.polar(torch.ones(8, 4), torch.arange(32.0).view(8, 4))


def rotary(x, weight):
    queries = rotated((x * 2).sin() @ weight, TURNS)
    return queries * x.cos() + queries.mean(-1, keepdim=True)


def with_gradients(function, size):
    generator = seeded(size)
    x = torch.randn(2, size, 3, 8, generator=generator).requires_grad_()
    weight = torch.randn(8, 8, generator=generator).requires_grad_()
    result = function(x, weight)
    result.square().sum().backward()
    return {"result": result, "strides": result.stride(), "gradients": (x.grad, weight.grad)}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_rotary_positions(backend):
    compiled = agree(rotary, with_gradients, 4, 4, 6, 7, backend=backend, programs=2, fullgraph=True, tol=1e-4)
    if backend == "native":
        for compilation in bothways.history(compiled):
            assert compilation.kernels >= 3, "the real numbers around are computed by kernels, both ways"
            assert "complex" not in str(compilation.outcome)


def test_a_step_of_a_model_with_rotary_positions_is_one_graph():
    """With a rate that is a number of the program: what it multiplies is followed for all sizes."""

    def train(function, rates):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(8, 8) / 3)]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        step = function(optimizer, parameters[0])
        losses = []
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            losses.append(step(torch.randn(2, 5, 3, 8)))
        return {"losses": losses, "parameters": parameters}

    def program(optimizer, weight):
        def step(x):
            optimizer.zero_grad()
            loss = rotary(x, weight).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    steps = []

    def compiled(optimizer, weight):
        steps.append(bothways.compile(program(optimizer, weight), fullgraph=True))
        return steps[0]

    expected, found = (train(function, (0.1, 0.2, 0.05, 0.03)) for function in (program, compiled))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    last = bothways.history(steps[0])[-1]
    assert last.kernels and "ATen (" not in str(last.outcome), last.outcome


def parts(z, x):
    return z.real * x, z.imag + x, z.conj().imag * x, (z * z.conj()).real.sqrt() + x, z.abs() * 2 + x


def views(z, x):
    return z.t(), z[:1] * x[0, 0], z.conj(), torch.view_as_real(z) * 2, z


def turned(z, x):
    return (z * 1j + x, (z + x) / (2 + 1j), z.sum() * x.sum(), torch.cat([z, z]), torch.where(x > 0, z, -z))


@pytest.mark.parametrize("program", [parts, views, turned])
@pytest.mark.parametrize("grad", [False, True])
def test_complex_inputs_and_results(program, grad):
    """Conjugated and negated views say so, and are read as what they show."""

    def observe(function, seed):
        generator = seeded(seed)
        z = torch.randn(3, 3, dtype=torch.complex64, generator=generator).requires_grad_(grad)
        x = torch.randn(3, 3, generator=generator).requires_grad_(grad)
        results = function(z, x)
        shown = [(one.stride(), one.is_conj(), one.is_neg(), one.dtype) for one in results]
        if grad:
            sum(one.abs().square().sum() for one in results).backward()
        return {"results": [one.detach().resolve_conj() for one in results], "how": shown, "grads": (z.grad, x.grad)}

    agree(program, observe, 1, 1, 2, backend="native", tol=1e-4)


def test_complex_inputs_that_are_changed():
    def program(z, x):
        y = (x * 2).sin()
        z.mul_(2j).add_(y)
        return y + z.real

    def observe(function, seed):
        generator = seeded(seed)
        z, x = torch.randn(3, 4, dtype=torch.complex64, generator=generator), torch.randn(3, 4, generator=generator)
        return {"result": function(z, x), "changed": z}

    agree(program, observe, 1, 1, 2, backend="native")


def test_a_conjugated_input_where_another_one_was_there():
    def program(z, x):
        return torch.view_as_real(z.resolve_conj()) * 2 + x, z.imag * 3

    def observe(function, conjugated):
        z = torch.arange(6.0).view(2, 3) * (1 + 2j)
        return {"results": function(z.conj() if conjugated else z, torch.ones(2))}

    agree(program, observe, False, False, True, True, False, backend="native")


def test_a_negated_view_between_two_parts_of_a_graph():
    """Complex numbers of half precision warn, so they run as captured; what they give may show another sign."""

    def program(z):
        return z.chalf().conj().imag * 3

    def observe(function, seed):
        z = torch.randn(4, dtype=torch.complex64, generator=seeded(seed))
        return {"result": function(z)}

    agree(program, observe, 1, 1, 2, backend="native")


CONJUGATED = {
    "with other numbers": lambda a, b: (a + 1j).conj() * b,
    "a product of matrices": lambda a, b: torch.complex(a, b).mH @ torch.complex(b, a),
    "its real part": lambda a, b: ((a + 1j) * (b - 2j)).conj().real * b,
    "its size": lambda a, b: torch.complex(a, b).conj().abs() * a,
}


@pytest.mark.parametrize("name", CONJUGATED)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_through_what_is_conjugated_later(name, backend):
    def observe(function, size):
        generator = seeded(size)
        a = torch.randn(size, 3, generator=generator).requires_grad_()
        result = function(a, torch.randn(size, 3, generator=generator))
        whole = (result * torch.ones(result.shape).to(result.dtype)).sum()
        (whole.abs() + (result * result.conj()).sum().real).backward()
        return {"result": result, "gradient": a.grad}

    agree(CONJUGATED[name], observe, 3, 3, 4, 5, backend=backend, tol=1e-4)


def shown(of):
    return lambda a, b: torch.view_as_real(of(torch.complex(a, b + 1).sin())) * b[..., None]


SHOWN = {
    "computed": (shown(lambda z: z), 0),
    "views of what is computed": (shown(lambda z: z.t().t()[:]), 0),
    "a copy of what is computed": (shown(lambda z: z.clone()), 0),
    "resolved": (shown(lambda z: z.conj().resolve_conj()), 1),
    "conjugated and back": (shown(lambda z: z.t().conj().t().conj()), 1),
    "a copy": (shown(lambda z: z.conj().clone()), 1),
}


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_numbers_that_are_shown_as_pairs_are_resolved_where_they_may_be_conjugated_later(name, backend):
    program, resolved = SHOWN[name]

    def observe(function, size):
        generator = seeded(size)
        a = torch.randn(size, 3, generator=generator).requires_grad_()
        result = function(a, torch.randn(size, 3, generator=generator))
        result.square().sum().backward()
        return {"result": result, "gradient": a.grad}

    compiled = agree(program, observe, 3, 3, 4, 5, backend=backend, tol=1e-4)
    a = torch.randn(5, 3, requires_grad=True)
    with profile() as recorded:
        compiled(a, torch.randn(5, 3))
    names = [event.name for event in recorded.function_events]
    assert "aten::view_as_real" in names and names.count("aten::resolve_conj") == resolved


VIEWS = [lambda z: z.conj().imag, lambda z: z.conj(), lambda z: z.conj().imag[1:], lambda z: z.view(1, -1).mH]
CHANGES = [lambda view, z: view.mul_(2), lambda view, z: z.mul_(3), lambda view, z: view.zero_()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view_of", VIEWS)
def test_a_view_of_conjugated_numbers_is_changed_once(view_of, change, backend):
    """A graph that fails when it has changed its inputs would have plain Python change them once more."""

    def program(z):
        own = z * 2
        views = view_of(z), view_of(own)
        for view, base in zip(views, (z, own), strict=True):
            change(view, base)
        return views, z.real

    def observe(function, count):
        z = torch.arange(float(count)).to(torch.complex64) * (1 + 2j)
        views, real = function(z)
        numbers = [view.resolve_conj().resolve_neg() for view in views]
        return {"how": (views[0].is_neg(), views[0].is_conj()), "numbers": numbers, "real": real, "input": z}

    agree(program, observe, 3, 3, 5, backend=backend, within={"kernels_for_small_graphs": True}, fullgraph=True)
