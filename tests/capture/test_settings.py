"""Settings that captured code changes or finds changed: default device and dtype, deterministic algorithms, modes."""

import contextlib

import pytest
import torch
from seeding import seeded

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter, CompileCounterWithBackend, same

X = torch.ones(3)
BACKENDS = ["eager", "aot_eager", "native"]
META = torch.device("meta")


@pytest.fixture(autouse=True)
def settings_are_kept():
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


def kind(tensor):
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def makes_tensors(x):
    return torch.zeros(2), torch.tensor([1.0, 2.0]), torch.rand(2, device="cpu"), torch.arange(3), x + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_a_device(backend):
    def function(x):
        with META:
            inside = makes_tensors(x), torch.get_default_device()
            with torch.device("cpu"):
                inner = makes_tensors(x)
        return inside, inner, makes_tensors(x), torch.get_default_device()

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    expected = function(X)
    for _ in range(2):
        result = compiled(X)
        assert [*map(kind, result[0][0])] == [*map(kind, expected[0][0])] and result[0][1] == META
        assert [*map(kind, result[1])] == [*map(kind, expected[1])]
        assert [*map(kind, result[2])] == [*map(kind, expected[2])] and result[3] == torch.device("cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_callers_default_device(backend):
    counter = CompileCounter()
    counted = bothways.compile(makes_tensors, backend=counter, fullgraph=True)
    compiled = bothways.compile(makes_tensors, backend=backend, fullgraph=True)
    for device in (META, torch.device("cpu"), None, META):
        torch.set_default_device(device)
        expected = [kind(tensor) for tensor in makes_tensors(X)]
        assert [kind(tensor) for tensor in compiled(X)] == expected
        assert [kind(tensor) for tensor in counted(X)] == expected
    assert counter.frame_count == 3
    torch.set_default_device(None)
    with META:
        compiled(X), counted(X)
    assert counter.frame_count == 3


def test_a_backward_under_another_default_device():
    x = torch.ones(64, requires_grad=True)
    y = bothways.compile(lambda x: (x.sin() * x).exp(), backend="native", fullgraph=True)(x)
    with META:
        y.backward(torch.ones(64, device="cpu"))
    assert x.grad.device == torch.device("cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_default_dtype_is_changed(backend):
    def function(x):
        before = torch.zeros(2)
        torch.set_default_dtype(torch.float64)
        return before, torch.zeros(2), torch.get_default_dtype(), x * torch.tensor(2.0)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    expected = function(X)
    for _ in range(2):
        torch.set_default_dtype(torch.float32)
        result = compiled(X)
        assert same(result, expected) and result[1].dtype == torch.float64
        assert torch.get_default_dtype() == torch.float64  # it stays, as in eager


@pytest.mark.parametrize("backend", BACKENDS)
def test_deterministic_algorithms(backend):
    def function(x):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        inside = torch.are_deterministic_algorithms_enabled()
        y = x.cumsum(0)
        torch.use_deterministic_algorithms(before)
        return y, before, inside

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for enabled in (False, True, False):
        torch.use_deterministic_algorithms(enabled)
        assert same(compiled(X), (X.cumsum(0), enabled, True))
        assert torch.are_deterministic_algorithms_enabled() == enabled


def test_a_capture_that_stops_leaves_settings_alone():
    def function(x):
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        return x[x > 0]

    with pytest.raises(Unsupported):
        bothways.compile(function, fullgraph=True)(X)
    assert torch.get_default_dtype() == torch.float32 and torch.get_float32_matmul_precision() == "highest"


def test_a_graph_that_fails_leaves_settings_as_eager_does():
    def function(x, index):
        torch.set_default_dtype(torch.float64)
        try:
            return x[index]
        finally:
            torch.set_default_dtype(torch.float32)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert same(compiled(X, torch.tensor([0])), X[:1])
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([9]))
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_makes_inference_tensors(backend):
    def function(x):
        with torch.inference_mode():
            y = (x * 2).sin() + 1
        return y, x + 1

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for x in (X, torch.ones(3, requires_grad=True)):
        for _ in range(2):
            y, z = compiled(x)
            assert same((y, z), function(x))
            assert y.is_inference() and not z.is_inference() and z.requires_grad == x.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranges_for_profilers_change_nothing(backend):
    @torch.profiler.record_function("decorated")
    def helper(x):
        return x * 2

    def function(x):
        with torch.profiler.record_function("a"), torch.autograd.profiler.record_function("b", "c"):
            return helper(x) + 1

    assert same(bothways.compile(function, backend=backend, fullgraph=True)(X), X * 2 + 1)


def test_several_contexts_at_once():
    def function(x, contexts):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            y = x * torch.ones(3)
        return y, torch.is_grad_enabled()

    x = torch.ones(3, requires_grad=True)
    compiled = bothways.compile(lambda x: function(x, [torch.no_grad(), META]), backend="eager")
    assert kind(compiled(torch.ones(3, device="meta"))[0])[2] == META
    compiled = bothways.compile(
        lambda x: function(x, [torch.no_grad(), torch.autocast("cpu")]), backend="eager", fullgraph=True
    )
    assert not compiled(x)[0].requires_grad and compiled(x)[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_implementations_of_attention_are_chosen(backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def function(q):
        before = torch.backends.cuda.flash_sdp_enabled()
        with sdpa_kernel([SDPBackend.MATH], set_priority=True):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            inside = torch.backends.cuda.flash_sdp_enabled()
        return y, before, inside, torch.backends.cuda.flash_sdp_enabled()

    q = torch.arange(24.0).reshape(1, 2, 3, 4) / 10
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        assert same(compiled(q), function(q))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_where_implementations_of_attention_are_chosen(backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    enabled = torch.backends.cuda.flash_sdp_enabled

    def function(q, fail):
        found = [enabled()]
        try:
            with sdpa_kernel(SDPBackend.MATH):
                y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
                bothways.graph_break()
                found.append(enabled())
                y = y + 1
                if fail:
                    raise ValueError
        except ValueError:
            y = y - 1
        return y, found, enabled()

    q = torch.arange(24.0).reshape(1, 2, 3, 4) / 10
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(function, backend=counter)
    for fail in (False, True, False):
        assert same(compiled(q, fail), function(q, fail))
    assert counter.frame_count == 3  # before the break, and behind it one for each flag


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_backward_that_is_traced_later_takes_the_kernels_of_attention_of_its_forward(backend, inside):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def chosen(*parts):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(*parts)

    def as_it_is(*parts):
        return torch.nn.functional.scaled_dot_product_attention(*parts)

    def run(function, second):
        generator = seeded(3)
        parts = [torch.randn(1, 2, 3, 4, generator=generator).requires_grad_() for _ in range(3)]
        with contextlib.nullcontext() if inside else sdpa_kernel(SDPBackend.MATH):
            result = function(*parts)
        grads = torch.autograd.grad(result.sum(), parts, create_graph=second)  # a gradient without strides of its own
        if second:
            grads += torch.autograd.grad(sum(grad.sin().sum() for grad in grads), parts)
        return result.detach(), *(grad.detach() for grad in grads)

    program = chosen if inside else as_it_is
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for second in (False, True, False):
        for mine, theirs in zip(run(compiled, second), run(program, second), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_context_that_forbids_hooks_decorates_a_function():
    def function(x):
        @torch.autograd.graph.disable_saved_tensors_hooks("not here")
        def inner(x):
            return x * x

        return inner(x) + 1

    x = torch.ones(3, requires_grad=True)
    assert same(bothways.compile(function, backend="eager", fullgraph=True)(x), function(x))


def test_a_grad_mode_set_by_the_users_own_context():
    class Grad:
        def __init__(self, mode):
            self.before, self.mode = torch.is_grad_enabled(), mode

        def __enter__(self):
            torch._C._set_grad_enabled(self.mode)

        def __exit__(self, *exception):
            torch._C._set_grad_enabled(self.before)

    def function(x):
        with Grad(True):
            y = x * 2
            with Grad(False):
                z = x * 3
        return y, z, torch.is_grad_enabled()

    compiled = bothways.compile(function, backend="native", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            y, z, now = compiled(x)
            assert y.requires_grad and not z.requires_grad and now == enabled


def test_a_break_where_settings_are_changed():
    def function(x):
        torch.set_default_dtype(torch.float64)
        y = torch.zeros(2)
        bothways.graph_break()
        z = torch.ones(2)
        torch.set_default_dtype(torch.float32)
        return x * 2, y, z, torch.zeros(1)

    compiled = bothways.compile(function, backend="eager")
    expected = [kind(tensor) for tensor in function(X)]
    for _ in range(2):
        assert [kind(tensor) for tensor in compiled(X)] == expected
        assert torch.get_default_dtype() == torch.float32
