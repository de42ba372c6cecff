"""The drop-in for those who write backends: what they call to differentiate and to compile a graph is ours."""

import pytest
import torch
import torch._dynamo
import torch._inductor
from functorch.compile import make_boxed_func, nop
from seeding import seeded
from torch._decomp import get_decompositions
from torch._dynamo._trace_wrapped_higher_order_op import trace_wrapped as theirs
from torch._dynamo.testing import CompileCounter

import bothways
from bothways.testing import difference

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def installed():
    bothways.install()
    yield
    bothways.uninstall()


def layer(x, weight):
    return torch.nn.functional.silu(x @ weight).sum()


def observed(function, rows):
    generator = seeded(rows)
    x = torch.randn(rows, 4, generator=generator)
    weight = torch.randn(4, 4, generator=generator).requires_grad_()
    result = function(x, weight)
    result.backward()
    return result.detach(), weight.grad


def agrees(backend, rows=(3, 3, 5, 6)):
    """A function compiled with a backend gives what it gives plainly, with sizes that stay and that change."""
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for count in rows:
        assert difference(observed(layer, count), observed(compiled, count)) is None
    return compiled


def names(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


class Halves:
    """A compiler of forward and backward graphs that writes down what it is given."""

    def __init__(self, wrap=make_boxed_func):
        self.seen, self.wrap = [], wrap

    def __call__(self, graph, inputs):
        self.seen.append(names(graph))
        return self.wrap(graph.forward)


@pytest.mark.parametrize("wrap", [make_boxed_func, lambda forward: forward], ids=["takes a list", "takes tensors"])
def test_aot_autograd_gives_both_halves_to_the_compilers_of_a_backend(wrap):
    from torch._dynamo.backends.common import aot_autograd

    forward, backward = Halves(wrap), Halves(wrap)
    agrees(aot_autograd(fw_compiler=forward, bw_compiler=backward), rows=(3, 3))
    assert forward.seen == [["aten.mm.default", "aten.silu.default", "aten.sum.default"]]
    assert len(backward.seen) == 1 and "aten.silu_backward.default" in backward.seen[0]


def test_aot_autograd_takes_operations_apart_as_it_is_told():
    from torch._dynamo.backends.common import aot_autograd

    halves = Halves()
    table = get_decompositions([aten.silu, aten.silu_backward])
    agrees(aot_autograd(fw_compiler=halves, decompositions=lambda: table))
    assert len(halves.seen) == 4  # for the first sizes, and for all others
    assert not any("silu" in name for seen in halves.seen for name in seen)
    # Versions of PyTorch take the sigmoid apart, or leave it.
    assert all({"aten.sigmoid.default", "aten.exp.default"} & {*seen} for seen in halves.seen)


def test_a_table_of_ones_own_is_followed_for_sizes_that_change():
    from torch._dynamo.backends.common import aot_autograd

    def silu(x):
        return x * torch.sigmoid(x)

    def silu_backward(grad, x):
        part = torch.sigmoid(x)
        return grad * part * (1 + x * (1 - part))

    halves = Halves()
    table = {aten.silu.default: silu, aten.silu_backward.default: silu_backward}
    agrees(aot_autograd(fw_compiler=halves, decompositions=table))
    expected = [
        ["aten.mm.default", "aten.sigmoid.default", "aten.mul.Tensor", "aten.sum.default"],
        ["aten.expand.default", "aten.sigmoid.default", "aten.mul.Tensor"],
    ]
    assert len(halves.seen) == 4
    for seen, names_there in zip(halves.seen, expected * 2, strict=True):
        there = [name for name in seen if not name.startswith("<")]
        assert set(names_there) <= set(there) and not any("silu" in name for name in there)


def test_a_compiler_for_inference_is_used_where_no_gradient_is_wanted():
    from torch._dynamo.backends.common import aot_autograd

    forward, inference = Halves(), Halves()
    backend = aot_autograd(fw_compiler=forward, inference_compiler=inference)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x, weight = torch.ones(2, 4), torch.ones(4, 4)
    assert difference(layer(x, weight), compiled(x, weight)) is None
    assert len(inference.seen) == 1 and not forward.seen
    compiled(x, weight.requires_grad_())
    assert len(forward.seen) == 1


def compile_fx_itself(graph, inputs):
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs)


def compile_fx_with_a_compiler_of_its_own(graph, inputs):
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, inner_compile=Halves())


def compile_fx_inner_for_both_halves(graph, inputs):
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.compile_fx import compile_fx_inner

    return aot_autograd(fw_compiler=compile_fx_inner)(graph, inputs)


def inductor_itself(graph, inputs):
    return torch._inductor.compile(graph, inputs)


@pytest.mark.parametrize(
    "backend",
    [compile_fx_itself, compile_fx_with_a_compiler_of_its_own, compile_fx_inner_for_both_halves, inductor_itself],
)
def test_a_backend_that_passes_a_graph_on_to_pytorchs_default_backend_gets_ours(backend):
    compiled = agrees(backend)
    assert not bothways.explain(compiled).breaks


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x):
        x.register_hook(lambda grad: grad + 3)
        y = x.mul(2)
        y.register_hook(lambda grad: grad * 5)
        return y * self.weight, y.sum()


def test_a_module_that_is_no_graph_is_differentiated_with_its_hooks():
    from torch._functorch.aot_autograd import aot_module_simplified

    sides = []
    for compiled in (False, True):
        module = Hooked()
        run = aot_module_simplified(module, (torch.ones(4, requires_grad=True),), nop) if compiled else module
        found = []
        for _ in range(2):
            x = torch.ones(4, requires_grad=True)  # the hook of a plain call would stay on its input
            first, second = run(x)
            (first.sum() + second).backward()
            found.append((first.detach(), second.detach(), x.grad, module.weight.grad.clone()))
        sides.append(found)
    assert difference(*sides) is None


def test_a_wrapped_call_has_pytorchs_name_in_a_traced_graph():
    from torch.fx.experimental.proxy_tensor import make_fx

    def square(x):
        return x * x

    def invoke(grad):
        return bothways.trace_wrapped(grad, fn=square)

    text = "torch__dynamo__trace_wrapped_higher_order_op_self_invoke(grad_1)"
    for traced in (make_fx(invoke)(torch.ones(2)), bothways.trace(invoke)(torch.ones(2))):
        (node,) = (node for node in traced.graph.nodes if node.op == "call_function")
        assert node.name == "trace_wrapped"
        assert text in traced.print_readable(print_output=False)
        assert torch.equal(traced(torch.full((2,), 3.0)), torch.full((2,), 9.0))
    bothways.uninstall()
    assert text not in bothways.trace(invoke)(torch.ones(2)).print_readable(print_output=False)
    assert theirs is not bothways.trace_wrapped


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return x + y


def test_a_listener_hears_which_guard_failed_in_pytorchs_words():
    heard = []
    counter = CompileCounter()
    compiled = torch._dynamo.optimize(counter, guard_fail_fn=lambda failure: heard.append(failure[0]))(Sum())
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    compiled(x, x)
    compiled(x, x)
    assert not heard
    compiled(x, y)
    assert heard[0].startswith("L['x'] is L['y']")
    compiled(x, y.detach())
    assert heard[1].startswith("tensor 'L['y']' requires_grad mismatch. expected requires_grad=1")
    assert counter.frame_count == len(heard) + 1 == 3
