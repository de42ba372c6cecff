"""What a compiled forward saves for its backward, and what the backward computes again instead.

Every program runs plainly and with ``aot`` backends, with ``config.recompute`` on and off: results and gradients are
eager's to the last bit, because the same kernels run on the same values. Tensors are large enough for saving them to
be worth avoiding: below some kilobytes nothing is computed again.
"""

import itertools
import operator
import random

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded

import bothways
from bothways.backends import aot
from bothways.grad.halves import partition
from bothways.grad.halves.mincut import UNLIMITED, Network
from bothways.grad.halves.partition import NotRepeatable, extract, needed_inputs, saved_values
from bothways.grad.tracing.joint import trace_joint

SHAPE = (64, 128)
BYTES = 64 * 128 * 4


@pytest.fixture
def functions_cost_nothing(monkeypatch):
    """Functions such as ``exp`` take no longer than memory does."""
    monkeypatch.setattr(partition, "_takes_long", lambda node: False)


class Graphs:
    """A backend that runs what it is given and keeps the backward graphs."""

    def __init__(self):
        self.backward = []
        self.backend = aot(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=self._backward)

    def _backward(self, graph, inputs):
        self.backward.append(graph)
        return graph.forward

    @property
    def targets(self):
        (graph,) = self.backward
        return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def tensors(*shapes):
    generator = seeded(0)
    return [torch.rand(shape, generator=generator).requires_grad_() for shape in shapes]


def gradients(function, args, use=lambda outputs: outputs):
    """The results of a call on copies of ``args``, and the gradients of those that ``use`` picks."""
    leaves = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    torch.manual_seed(0)
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(output.sin().sum() for output in use(outputs)).backward()
    return [*outputs, *leaves, *(leaf.grad for leaf in leaves)]


def assert_same_bits(expected, got):
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def joint_of(program, args):
    def listed(*values):
        outputs = program(*values)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return trace_joint(listed, args, True)


def saved_bytes(values):
    """The memory that saving ``values`` keeps alive."""
    return sum(map(partition._size, values))


def saved_by(program, args, recompute=True):
    with bothways.config.patch(recompute=recompute):
        return saved_values(joint_of(program, args))


def saved_by_eager(program, args):
    """The bytes of everything but inputs that eager's backward keeps alive."""
    own = {arg.untyped_storage().data_ptr() for arg in args}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = program(*args)
    assert outputs is not None  # alive until here, and all that they hold
    return sum(storage.nbytes() for storage in found.values())


def gelu_mlp(x, w):
    return F.gelu(x @ w) @ w.t()


def two_layers(x, w):
    return gelu_mlp(gelu_mlp(x, w), w)


def pointwise_chain(x, w):
    return x.sin().exp().tanh()


def long_chain(x, w):
    for _ in range(20):
        x = x.sin().exp()
    return x


def layer_norm(x, w):
    return F.layer_norm(x * 2, (128,)).sigmoid()


def hand_written_norm(x, w):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (y * w.sum(0)[:128]).relu()


def softmax(x, w):
    return ((x * 0.5).softmax(-1) + 1).log()


def dropout(x, w):
    return F.dropout(x.sin(), 0.3).exp().cos()


def noise(x, w):
    return (x * torch.rand_like(x)).exp().tanh() * torch.randn(128)


def views(x, w):
    y = (x @ w).view(2, 32, 256)
    first, second = y.transpose(0, 1).chunk(2, -1)
    return first.sin() * second[:, :1].cos()


def in_place(x, w):
    y = x * 2
    y.sin_()
    y[:, 0] = 1
    y.view(-1)[5:50].mul_(3)
    return y.exp() * y


def casts(x, w):
    return (x.to(torch.bfloat16).sin() @ w.to(torch.bfloat16)).float().tanh()


def mask(x, w):
    return torch.where(x > 0.5, x.exp(), x * 2).masked_fill(x < 0.1, 0.0).sin()


def several_results(x, w):
    y = (x @ w).sin()
    return y.exp(), (y * 2).tanh()


def result_that_is_needed(x, w):
    y = x.exp()
    return y, y.tanh().cos()


def constants(x, w):
    return (x.sin() + torch.arange(128.0)).cos() * torch.tensor([2.0]).exp()


PROGRAMS = [
    gelu_mlp, two_layers, pointwise_chain, long_chain, layer_norm, hand_written_norm, softmax, dropout, noise, views,
    in_place, casts, mask, several_results, result_that_is_needed, constants,
]  # fmt: skip
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@pytest.fixture
def args():
    return tensors(SHAPE, (128, 256))


@every_program
@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "save"])
def test_results_and_gradients_are_eagers(program, recompute, args):
    graphs = Graphs()
    with bothways.config.patch(recompute=recompute):
        compiled = bothways.compile(program, backend=graphs.backend, fullgraph=True)
        assert_same_bits(gradients(program, args), gradients(compiled, args))
    assert graphs.backward, "the program was not compiled"


@every_program
def test_never_more_is_saved_than_in_eager(program, args):
    chosen = saved_bytes(saved_by(program, args))
    plain = saved_bytes(saved_by(program, args, recompute=False))
    assert chosen <= plain <= saved_by_eager(program, args)


@every_program
def test_the_inputs_that_are_needed_do_not_depend_on_the_choice(program, args):
    joint = joint_of(program, args)
    for recompute in (True, False):
        with bothways.config.patch(recompute=recompute):
            saved = saved_values(joint)
        graph = extract(joint, [*joint.primals, *saved, *joint.tangents], joint.gradients)
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        assert needed_inputs(joint) == tuple(i for i in range(len(args)) if placeholders[i].users)


@every_program
def test_only_what_owns_its_memory_is_saved(program, args):
    def memory(node):
        return node.meta["val"].untyped_storage()._cdata

    for node in [*saved_by(program, args), *saved_by(program, args, recompute=False)]:
        picked = node.args[0].all_input_nodes if node.target is operator.getitem else node.all_input_nodes
        assert memory(node) not in map(memory, picked)


def used_twice(y):
    return ((y * 2).sin() + (y * 3).cos()).sum()


@pytest.mark.usefixtures("functions_cost_nothing")
@pytest.mark.parametrize(
    "program, chosen, plain",
    [
        (lambda x, w: x.sin().exp().tanh().sum(), 0, 2),  # eager has x for sin, and both results
        (lambda x, w: x.exp().tanh().sum(), 1, 2),  # eager does not need x, so neither may we: exp's result it is
        (lambda x, w: x.exp().tanh(), 2, 2),  # tanh's result is the user's, too: eager saves it, so it costs nothing
        (lambda x, w: (x * 2 + 1).sin().sum(), 1, 1),
        (lambda x, w: F.gelu(x @ w[:, :128]).sin().sum(), 1, 2),
        (lambda x, w: F.dropout(x.sin(), 0.5).sum(), 1, 1),  # the mask
        (lambda x, w: ((x * 2).sin() + (x * 3).cos()).sum(), 2, 2),  # x would do, but eager does not need it
        (lambda x, w: used_twice(x @ w[:, :128]), 1, 2),  # the product
        (lambda x, w: (y := x @ w[:, :128], used_twice(y)), 2, 2),  # now it is the user's
    ],
)
def test_tensors_saved(program, chosen, plain, args):
    assert saved_bytes(saved_by(program, args)) == chosen * BYTES
    assert saved_bytes(saved_by(program, args, recompute=False)) == plain * BYTES


def test_a_chain_that_costs_more_than_it_saves_is_not_computed_again():
    def program(x, w):
        y = x.sin()
        for _ in range(6):
            y = y + 1
        return y.cos().sum()

    (saved,) = saved_by(program, tensors((256, 256), (1,)))
    assert saved.target is torch.ops.aten.add.Tensor


@pytest.mark.usefixtures("functions_cost_nothing")
def test_a_long_chain_is_saved_at_some_points(args):
    # 20 times sin and exp: eager saves 20 values. None would do, but then the backward would begin with all.
    assert 3 * BYTES <= saved_bytes(saved_by(long_chain, args)) <= 7 * BYTES
    assert saved_bytes(saved_by(long_chain, args, recompute=False)) == 20 * BYTES


def test_on_a_gpu_a_chain_is_computed_again_where_it_is_read(monkeypatch):
    """There it is part of the kernel that reads it: of ten values that a backward reads, two are saved."""

    def program(x):
        for _ in range(5):
            x = torch.sigmoid(x * 1.1 + 0.3) - x.tanh()
        return x

    args = tensors((256, 256))
    monkeypatch.setattr(partition, "prices_of", lambda node: partition.PRICES["cuda"])
    assert len(saved_by(program, args)) == 2


def test_small_values_are_saved():
    args = tensors((8, 8), (8, 8))
    assert len(saved_by(pointwise_chain, args)) == len(saved_by(pointwise_chain, args, recompute=False)) == 2


def again(program, args):
    """How often each operation runs in the backward beyond what the formulas of eager run."""
    counts = []
    for recompute in (True, False):
        graphs = Graphs()
        with bothways.config.patch(recompute=recompute):
            gradients(bothways.compile(program, backend=graphs.backend, fullgraph=True), args)
        counts.append(graphs.targets)
    more, fewer = counts
    return {target.overloadpacket.__name__ for target in more if more.count(target) > fewer.count(target)}


@pytest.mark.usefixtures("functions_cost_nothing")
@pytest.mark.parametrize(
    "program, expected",
    [
        (gelu_mlp, {"gelu"}),
        (pointwise_chain, {"sin", "exp"}),
        (lambda x, w: F.dropout(x.exp() @ w, 0.5).sin().exp().sum(), {"sin", "exp", "mul"}),
        (lambda x, w: x.cumsum(0).sin().exp().sum(), {"sin", "exp"}),
        (lambda x, w: x.sort(-1)[0].sin().exp().sum(), {"sin", "exp"}),
        (lambda x, w: ((x * 2).softmax(-1) * 2).exp().sum(), {"exp", "mul"}),
        (lambda x, w: ((x @ w).relu() @ w.t()).sum(), set()),
    ],
)
def test_what_runs_again_is_cheap(program, expected, args):
    assert again(program, args) - {"view", "t"} <= expected
    assert bool(again(program, args)) == bool(expected)


def test_random_numbers_are_drawn_once(args):
    graphs = Graphs()
    compiled = bothways.compile(noise, backend=graphs.backend, fullgraph=True)
    result = compiled(*args)
    state = torch.get_rng_state()
    result.sum().backward()
    assert torch.equal(state, torch.get_rng_state())
    assert not any(torch.Tag.nondeterministic_seeded in target.tags for target in graphs.targets)


def test_a_backward_that_would_draw_again_is_refused(args):
    joint = joint_of(dropout, args)
    with pytest.raises(NotRepeatable, match="(bernoulli|native_dropout).* would draw other numbers"):
        extract(joint, [*joint.primals, *joint.tangents], joint.gradients)


@pytest.mark.usefixtures("functions_cost_nothing")
def test_values_are_computed_again_when_they_are_needed_and_not_before(args):
    graphs = Graphs()
    gradients(bothways.compile(two_layers, backend=graphs.backend, fullgraph=True), args)
    names = [target.overloadpacket.__name__ for target in graphs.targets if "gelu" in target.__name__]
    assert names == ["gelu", "gelu_backward", "gelu", "gelu_backward"]


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_backward_through_some_results(chosen, recompute, args):
    def program(x, w):
        y = F.dropout((x @ w).sin(), 0.5).exp()
        return y.tanh(), (y * 2).cos()

    with bothways.config.patch(recompute=recompute):
        compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
        pick = lambda outputs: [outputs[index] for index in chosen]
        assert_same_bits(gradients(program, args, pick), gradients(compiled, args, pick))


@pytest.mark.parametrize("recompute", [True, False])
def test_gradients_laid_out_in_other_ways(recompute, args):
    def program(x, w):
        return F.gelu(x @ w).sin()

    with bothways.config.patch(recompute=recompute):
        compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
        results = []
        for function in (program, compiled):
            x, w = (arg.detach().clone().requires_grad_() for arg in args)
            for tangent in (torch.ones(64, 256), torch.ones(256, 64).t(), torch.ones(1, 1).expand(64, 256)):
                function(x, w).backward(tangent)
            results.append([x.grad, w.grad])
        assert_same_bits(*results)


@pytest.mark.parametrize("recompute", [True, False])
def test_second_derivatives(recompute, args):
    def program(x, w):
        return F.gelu(x @ w).sin().exp().sum()

    results = []
    with bothways.config.patch(recompute=recompute):
        for function in (program, bothways.compile(program, backend="aot_eager", fullgraph=True)):
            x, w = (arg.detach().clone().requires_grad_() for arg in args)
            first = torch.autograd.grad(function(x, w), [x, w], create_graph=True)
            second = torch.autograd.grad(sum(part.pow(2).sum() for part in first), [x, w])
            results.append([*first, *second])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_retained_graph_is_used_twice(args):
    compiled = bothways.compile(pointwise_chain, backend="aot_eager", fullgraph=True)
    x, w = args
    loss = compiled(x, w).sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("recompute", [True, False])
def test_an_input_changed_inside(recompute, args):
    def program(x, counter):
        counter.add_(1)
        return (x * counter).sin().exp().tanh()

    inputs = [args[0], torch.ones(SHAPE)]
    with bothways.config.patch(recompute=recompute):
        compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
        assert_same_bits(gradients(program, inputs), gradients(compiled, inputs))


def exponential(x, w):
    return (x.exp().tanh() @ w).exp().sin()


def returned_and_used_on(x, w):
    y = x * 2
    return y, y.exp().tanh().sum()


def returned_and_needed(x, w):
    y = x * 2
    return y, y.sin().exp().sum()


def returned_view(x, w):
    return x.exp().view(-1)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    "program, changed",
    [
        (exponential, "input"), (pointwise_chain, "input"), (views, "weight"), (gelu_mlp, "weight"), (casts, "weight"),
        (returned_and_used_on, "result"), (returned_and_needed, "result"), (returned_view, "result"),
        (pointwise_chain, "result"), (long_chain, "result"),
    ],
)  # fmt: skip
def test_changes_between_forward_and_backward_are_errors_where_they_are_in_eager(program, changed, recompute, args):
    outcomes = []
    with bothways.config.patch(recompute=recompute):
        for function in (program, bothways.compile(program, backend="aot_eager", fullgraph=True)):
            x, w = (arg.detach().clone().requires_grad_() for arg in args)
            outputs = function(x, w)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            with torch.no_grad():
                {"input": x, "weight": w, "result": outputs[0]}[changed].add_(1)
            try:
                outputs[-1].sum().backward()
                outcomes.append(x.grad)
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)
                outcomes.append(None)
    assert_same_bits(outcomes[:1], outcomes[1:])


def cut_value(edges, side):
    return sum(capacity for tail, head, capacity in edges if tail not in side and head in side)


def test_minimum_cuts_are_minimal():
    """Against every cut there is; among equal ones the one with the fewest nodes on the sink's side."""
    numbers = random.Random(0)
    for _ in range(500):
        count = numbers.randint(2, 8)
        pairs = list(itertools.permutations(range(count), 2))
        edges = [(*pair, numbers.choice([0, 1, 2, 3, 5, 50])) for pair in numbers.choices(pairs, k=2 * count)]
        network = Network()
        for _ in range(count):
            network.node()
        for edge in edges:
            network.connect(*edge)
        others = range(2, count)
        sides = [{1, *chosen} for size in range(count - 1) for chosen in itertools.combinations(others, size)]
        assert network.cut(0, 1) == min(sides, key=lambda side: (cut_value(edges, side), len(side)))


def test_a_flow_that_has_to_be_led_back():
    # The shortest path goes from a to d; the longer way to d is open only when that flow is sent from a to e instead.
    network = Network()
    source, sink, *middle = (network.node() for _ in range(8))
    a, b, c, d, e, f = middle
    for edge in [(source, a), (a, d), (d, sink), (source, b), (b, c), (c, d), (a, e), (e, f), (f, sink)]:
        network.connect(*edge, 1)
    assert network.cut(source, sink) == {sink}


def test_an_unlimited_edge_is_not_cut():
    network = Network()
    source, middle, sink = (network.node() for _ in range(3))
    network.connect(source, middle, 7)
    network.connect(middle, sink, UNLIMITED)
    assert network.cut(source, sink) == {middle, sink}


def test_a_long_network_takes_no_recursion():
    network = Network()
    nodes = [network.node() for _ in range(20_000)]
    for one, other in itertools.pairwise(nodes):
        network.connect(one, other, 2 if one != nodes[10_000] else 1)
    assert network.cut(nodes[0], nodes[-1]) == set(nodes[10_001:])


def test_functions_that_take_long_are_not_run_again_on_a_cpu(args):
    assert again(pointwise_chain, args) == set()
    assert again(lambda x, w: ((x @ w) * 2 + 1).relu().square().sum(), args) <= {"mul", "add", "relu"}
