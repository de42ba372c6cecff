"""A compiled backward is eager's in everything autograd lets people see.

Each program runs plainly and with ``aot_eager``: results, which of them require grad, gradients (None ones
too), their dtype and strides, memory shared between tensors, and errors are compared.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree
from seeding import seeded

import bothways
from bothways.backends import aot
from bothways.testing import difference


class Graphs:
    """A backend that runs what it is given and counts it."""

    def __init__(self):
        self.forward, self.backward = [], []
        self.backend = aot(fw_compiler=self._forward, bw_compiler=self._backward)

    def _forward(self, graph, inputs):
        self.forward.append(graph)
        return graph.forward

    def _backward(self, graph, inputs):
        self.backward.append(graph)
        return graph.forward


def inputs(*shapes, dtype=torch.float32):
    generator = seeded(0)
    return [torch.rand(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def compared(program, args, use=lambda outputs: sum(o.sum() for o in outputs if o.requires_grad)):
    """Run plainly and compiled, twice, backward through what ``use`` picks; give the graphs."""

    def observe(function, args):
        leaves = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        torch.manual_seed(0)
        outputs = function(*leaves)
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        used = use(listed)
        if isinstance(used, torch.Tensor) and used.requires_grad:
            used.backward()
        gradients = [leaf.grad for leaf in leaves]
        return {
            "results": listed,
            "what autograd says of them": [(o.requires_grad, o.is_leaf, o.stride(), o.grad_fn is None) for o in listed],
            "inputs": leaves,
            "gradients": gradients,
            "how gradients lie": [None if one is None else (one.dtype, one.stride()) for one in gradients],
        }

    graphs = Graphs()
    agree(program, observe, args, args, backend=graphs.backend, programs=1, fullgraph=True)
    return graphs


def unused_input(x, y):
    return x * 2


def used_for_its_shape_only(x, y):
    return x * y.shape[0]


def detached(x, y):
    return x * y.detach(), y.detach() + 1


def partly_without_grad(x, y):
    with torch.no_grad():
        z = x * 2
    return z * y, z


def integer_outputs(x, y):
    return x.argmax(), (x * y).sum(), (x > y)


def view_of_an_input(x, y):
    return x.view(-1), (x * y)


def part_of_an_input(x, y):
    return x[1:, 0], x.t(), x * y


def views_of_one_result(x, y):
    return (x * y).split(1)


def result_and_its_view(x, y):
    z = torch.sin(x)
    return z, z.view(-1), z[0]


def transposed_result(x, y):
    return (x @ y.t()).t()


def in_place_on_intermediates(x, y):
    z = x * 1
    z.mul_(y)
    z[0] = y[1]
    z.view(-1)[:2].add_(1)
    return z


def empty_tensors(x, y):
    return x[:0] * 2, x.sum()


def complex_inside(x, y):
    return torch.view_as_real(torch.complex(x, y) * torch.complex(y, x))


def mixed_dtypes(x, y):
    return x.double() * y, x.to(torch.bfloat16)


def under_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ y.t()


def random(x, y):
    z = F.dropout(x, 0.5)
    return z * y, torch.rand(3) + z.sum()


def non_leaf_work(x, y):
    return (x * 2) * (y * 3), x.exp()


def constants_inside(x, y):
    return x * torch.tensor([1.0, 2.0, 3.0]) + torch.ones(2, 3)


PROGRAMS = [
    unused_input, used_for_its_shape_only, detached, partly_without_grad, integer_outputs, view_of_an_input,
    part_of_an_input, views_of_one_result, result_and_its_view, transposed_result, in_place_on_intermediates,
    empty_tensors, complex_inside, mixed_dtypes, under_autocast, random, non_leaf_work, constants_inside,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program):
    graphs = compared(program, inputs((2, 3), (2, 3)))
    assert graphs.forward, "the program was not compiled"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_without_gradients(program):
    args = [tensor.detach() for tensor in inputs((2, 3), (2, 3))]
    graphs = compared(program, args)
    assert len(graphs.forward) == 1 and not graphs.backward


@pytest.mark.parametrize("chosen", [0, 1])
def test_backward_through_some_outputs_leaves_none_where_eager_does(chosen):
    def program(x, y):
        return x * 2, y * 3

    compared(program, inputs((2,), (2,)), use=lambda outputs: outputs[chosen].sum())


def test_shared_memory_is_shared():
    def program(x):
        z = x * 2
        return z, z.view(-1), x.view(-1)

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 2)
    z, flat, window = compiled(x)
    z.add_(1)
    window.add_(5)
    assert torch.equal(flat, torch.full((4,), 3.0)) and torch.equal(x, torch.full((2, 2), 6.0))


def test_inputs_mutated_inside_are_mutated_outside():
    def program(x, counter):
        counter.add_(1)
        return x * counter

    x, counter = torch.ones(3, requires_grad=True), torch.zeros(3)
    graphs = Graphs()
    compiled = bothways.compile(program, backend=graphs.backend, fullgraph=True)
    for step in (1, 2):
        compiled(x, counter).sum().backward()
        assert torch.equal(counter, torch.full((3,), float(step)))
    assert torch.equal(x.grad, torch.full((3,), 3.0)) and len(graphs.forward) == 1


def test_batch_norm_updates_its_statistics():
    plain = torch.nn.BatchNorm1d(3)
    other = copy.deepcopy(plain)
    compiled = bothways.compile(other, backend="aot_eager", fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 3)
        assert difference(plain(x), compiled(x)) is None
    assert difference(plain.state_dict(), other.state_dict()) is None


def test_a_mutated_input_that_needs_a_gradient_gets_it():
    def program(x):
        y = x * 1
        return bump(y)

    def bump(y):
        y.add_(y)
        return y

    compared(program, inputs((3,)))


def test_gradients_accumulate():
    def program(x):
        return (x**2).sum()

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        compiled(x).backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))


def test_the_graph_can_be_retained():
    compiled = bothways.compile(lambda x: (x**3).sum(), backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    loss = compiled(x)
    first = torch.autograd.grad(loss, x, retain_graph=True)
    assert difference(first, torch.autograd.grad(loss, x)) is None


def test_backward_twice_raises_what_eager_raises():
    compiled = bothways.compile(lambda x: (x**3).sum(), backend="aot_eager", fullgraph=True)
    loss = compiled(torch.ones(3, requires_grad=True))
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_changing_what_the_backward_needs_raises_what_eager_raises():
    compiled = bothways.compile(lambda x, y: (x * y).sum(), backend="aot_eager", fullgraph=True)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    loss = compiled(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_changing_what_the_backward_does_not_need_is_no_error():
    compiled = bothways.compile(lambda x, y: (x + y).sum(), backend="aot_eager", fullgraph=True)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    loss = compiled(x, y)
    y.add_(1)
    loss.backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_inputs_with_a_history_pass_gradients_on():
    def program(x):
        return torch.tanh(x).sum()

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (program, compiled):
        leaf = torch.ones(2, 3, requires_grad=True)
        function((leaf * 2).t()).backward()
        grads.append(leaf.grad)
    assert difference(*grads) is None


def test_the_same_tensor_twice():
    def program(x, y):
        return (x * y).sum()

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.full((3,), 2.0, requires_grad=True)
    compiled(x, x).backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))
    compiled(x, torch.ones(3)).backward()
    assert torch.equal(x.grad, torch.full((3,), 5.0))


def test_the_backward_is_compiled_when_it_first_runs():
    graphs = Graphs()
    compiled = bothways.compile(lambda x: (x**2).sum(), backend=graphs.backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    loss = compiled(x)
    assert (len(graphs.forward), len(graphs.backward)) == (1, 0)
    loss.backward()
    compiled(x).backward()
    assert (len(graphs.forward), len(graphs.backward)) == (1, 1)


def test_no_grad_never_differentiates():
    graphs = Graphs()
    compiled = bothways.compile(lambda x: torch.tanh(x) * 2, backend=graphs.backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    (graph,) = graphs.forward
    assert sum(node.op == "call_function" for node in graph.graph.nodes) == 2


def test_gradient_penalty():
    def critic(x, weight):
        return torch.tanh(x @ weight).sum(1)

    results = []
    for function in (critic, bothways.compile(critic, backend="aot_eager", fullgraph=True)):
        x, weight = inputs((4, 3), (3, 2))
        (gradient,) = torch.autograd.grad(function(x, weight).sum(), x, create_graph=True)
        ((gradient.norm(dim=1) - 1) ** 2).mean().backward()
        results.append((x.grad, weight.grad))
    assert difference(*results) is None


def test_hessian_vector_product_and_third_derivatives():
    def energy(x):
        return (torch.sin(x) * x**3).sum()

    results = []
    for function in (energy, bothways.compile(energy, backend="aot_eager", fullgraph=True)):
        (x,) = inputs((5,))
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        (second,) = torch.autograd.grad((first * torch.arange(5.0)).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        results.append((first, second, third))
    assert difference(*results) is None


def test_dropout_differentiated_twice_uses_one_mask():
    def program(x):
        return (F.dropout(x, 0.5) ** 3).sum()

    results = []
    for function in (program, bothways.compile(program, backend="aot_eager", fullgraph=True)):
        (x,) = inputs((20,))
        torch.manual_seed(3)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        results.append((first, second))
    assert difference(*results) is None


def test_trace_gives_forward_and_backward_in_one_graph():
    def step(x, w):
        loss = torch.tanh(x @ w).sum()
        return loss, *torch.autograd.grad(loss, [w])

    x, w = inputs((2, 3), (3, 4))
    graph = bothways.trace(step)(x, w)
    targets = {str(node.target) for node in graph.graph.nodes}
    assert {"aten.mm.default", "aten.tanh.default", "aten.tanh_backward.default"} <= targets
    assert difference(graph(x.detach(), w.detach()), tuple(t.detach() for t in step(x, w))) is None


def test_overlapping_inputs_see_each_others_changes():
    def program(a, b):
        a.add_(1)
        return b * 2

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    apart = torch.zeros(3), torch.zeros(3)
    assert torch.equal(compiled(*apart), torch.zeros(3))
    for function in (program, compiled):
        memory = torch.zeros(4)
        assert torch.equal(function(memory[:3], memory[1:]), torch.tensor([2.0, 2.0, 0.0]))


def test_checks_of_operations_are_kept():
    compiled = bothways.compile(lambda x: torch.linalg.cholesky(x), backend="aot_eager", fullgraph=True)
    compiled(torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(-torch.eye(2))


def test_in_place_work_on_an_input_with_a_history():
    grads = []
    for backend in (None, "aot_eager"):
        layer = torch.nn.ReLU(inplace=True)
        function = layer if backend is None else bothways.compile(layer, backend=backend, fullgraph=True)
        x = torch.linspace(-1, 1, 4).requires_grad_()
        function(x * 2).sum().backward()
        grads.append(x.grad)
    assert difference(*grads) is None


def test_independent_results_are_differentiated_one_after_the_other():
    compiled = bothways.compile(lambda x, y: (x.sin(), y.cos()), backend="aot_eager", fullgraph=True)
    x, y = inputs((3,), (3,))
    first, second = compiled(x, y)
    first.sum().backward()
    second.sum().backward()
    assert torch.equal(x.grad, x.cos()) and torch.equal(y.grad, -y.sin())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_saved_tensor_hooks_see_what_they_see_in_eager(backend):
    def program(x):
        return (x.sin() * x).sum()

    seen = {}
    for name, function in (("plain", program), ("compiled", bothways.compile(program, backend=backend))):
        packed = []
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.device.type) or t, lambda t: t):  # noqa: B023
            function(x).backward()
        seen[name] = set(packed)
    assert seen["plain"] == seen["compiled"] == {"cpu"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_activation_checkpointing(backend):
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(3, 3)
    grads = []
    for function in (layer, bothways.compile(layer, backend=backend)):
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(function, x, use_reentrant=False).sum().backward()
        grads.append(x.grad)
    assert difference(*grads) is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_backward_whose_sizes_depend_on_data(backend):
    """The gradient of the number is a sum over the indices that there are, each once: no fake tensor knows of how many,
    and some say one."""

    def observe(function, index):
        x, number = inputs((5, 4), ())
        result = function(x, index, number)
        (result * torch.arange(20.0).view(5, 4)).sum().backward()
        return {"result": result.detach(), "gradients": [x.grad, number.grad]}

    indices = [torch.tensor(index) for index in ([0, 1, 1, 3], [4, 4, 4, 4], [0, 1, 2, 3], [0, 1, 1, 3])]
    agree(lambda x, index, number: x.index_fill(0, index, number), observe, *indices, backend=backend)
