"""A graph is cut where autograd is watched from outside; the rest stays compiled, and everything agrees with eager."""

import pytest
import torch
from agreeing import agree

import bothways
from bothways import backends
from bothways.testing import difference


class Recording:
    """An ahead-of-time backend that keeps the graphs it was given."""

    def __init__(self):
        self.forwards, self.backwards = [], []
        self.backend = backends.aot(fw_compiler=self._keep(self.forwards), bw_compiler=self._keep(self.backwards))

    def _keep(self, graphs):
        def compile_graph(graph, inputs):
            graphs.append(graph)
            return graph.forward

        return compile_graph

    def operations(self):
        graphs = [*self.forwards, *self.backwards]
        return [node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]


def pieces_agree(program, inspect, runs=2):
    """Compare what ``inspect(outputs, x)`` gives for the program plain and compiled; the Recording is returned."""
    recording = Recording()

    def observe(function, _):
        x = torch.linspace(0.5, 2, 6).reshape(2, 3).requires_grad_()
        return {"what is inspected": inspect(function(x), x), "gradient": x.grad}

    agree(program, observe, *range(runs), backend=recording.backend, fullgraph=True)
    return recording


def backward(outputs, x):
    outputs.sum().backward()


def test_a_hooked_intermediate_cuts_the_graph_in_two():
    def program(x):
        y = x.sin().exp()
        y.register_hook(lambda grad: grad * 3)
        return y.tanh().cos()

    recording = pieces_agree(program, backward)
    assert len(recording.forwards) == len(recording.backwards) == 2


def test_an_unwatched_graph_stays_whole():
    recording = pieces_agree(lambda x: x.sin().exp().tanh(), backward)
    assert len(recording.forwards) == len(recording.backwards) == 1


def test_a_retained_gradient_is_the_whole_gradient():
    def program(x):
        y = x.sin()
        y.retain_grad()
        return (y * y).sum() + y.exp().sum(), y

    def inspect(outputs, x):
        outputs[0].backward()
        return outputs[1].grad

    pieces_agree(program, inspect)


def test_gradients_of_one_output_by_another():
    def program(x):
        hidden = x.sin()
        return hidden, (hidden * hidden).sum()

    def inspect(outputs, x):
        hidden, loss = outputs
        return torch.autograd.grad(loss, [hidden, x])

    recording = pieces_agree(program, inspect)
    assert len(recording.forwards) == 2


def test_a_hook_put_on_an_output_sees_what_comes_from_the_others():
    def program(x):
        hidden = x.sin()
        return hidden, (hidden * hidden).sum()

    def inspect(outputs, x):
        hidden, loss = outputs
        seen = []
        hidden.register_hook(seen.append)
        hidden.retain_grad()
        (loss + hidden.sum()).backward()
        return seen, hidden.grad

    pieces_agree(program, inspect)


@pytest.mark.parametrize("sizes", [(3,), (3, 4, 5)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_backward_leaves_alone_what_its_result_has_nothing_to_do_with(backend, sizes):
    def program(x, w):
        seen = x * x
        return seen, seen.exp(), w.exp()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for size in sizes:
        for function in (program, compiled):
            x, w = torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)
            before = x * x * x  # an operation outside, which saved something
            seen, _, other = function(before, w)
            other.sum().backward()
            assert before.grad_fn is not None and x.grad is None
            seen.sum().backward()
            assert torch.equal(x.grad, torch.full((size,), 6.0))


def test_outputs_that_feed_nothing_are_no_reason_to_cut():
    recording = pieces_agree(lambda x: (x.sin() * 2, x.sin() * 3), lambda outputs, x: sum(outputs).sum().backward())
    assert 1 <= len(recording.forwards) <= 2


CALLS = []


class Logged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        CALLS.append(tuple(grad.shape))
        return grad * 2 * x


def test_a_backward_with_effects_runs_as_python_between_compiled_parts():
    def program(x):
        return Logged.apply(x.sin()).cos()

    def inspect(outputs, x):
        CALLS.clear()
        outputs.sum().backward()
        return list(CALLS)

    recording = pieces_agree(program, inspect)
    assert len(recording.forwards) == 2
    assert torch.ops.aten.sin.default in recording.operations()


def test_cuts_inside_no_grad_are_no_cuts_of_the_context():
    def program(x):
        y = x * 2
        with torch.no_grad():
            scale = y.mean()
            shift = scale + 1
        z = y * scale
        z.register_hook(lambda grad: grad * 2)
        return z + shift, scale

    pieces_agree(program, lambda outputs, x: (outputs[0].sum().backward(), outputs[1].requires_grad))


def test_a_hook_inside_a_context_keeps_the_context_whole():
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
            y.register_hook(lambda grad: grad * 2)
            z = y @ y
        return z.float() * 2

    pieces_agree(program, backward)


def test_double_backward_through_a_cut():
    def program(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * grad)
        return (y * y * y).sum()

    def inspect(loss, x):
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    pieces_agree(program, inspect)


def test_anomaly_mode_names_the_operation_as_eager_does():
    def program(x):
        return (x * 0).sqrt() * 0

    compiled = bothways.compile(program, backend="aot_eager", fullgraph=True)
    messages = []
    for function in (program, compiled):
        with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
            x = torch.zeros(2, requires_grad=True)
            with pytest.raises(RuntimeError) as caught, pytest.warns(UserWarning, match="Error detected"):
                function(x).sum().backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "SqrtBackward0" in messages[0]


def test_views_and_random_numbers_across_a_cut():
    def program(x):
        y = torch.dropout(x * 2, 0.5, True)
        rows = y.view(3, 2)
        y.register_hook(lambda grad: grad + 1)
        return rows.exp() + torch.dropout(rows, 0.5, True)

    def inspect(outputs, x):
        outputs.sum().backward()
        return outputs

    sides = []
    for function in (program, bothways.compile(program, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(7)
        found = []
        for _ in range(3):
            x = torch.linspace(0.5, 2, 6).reshape(2, 3).requires_grad_()
            found.append((inspect(function(x), x), x.grad))
        sides.append(found)
    assert difference(*sides) is None


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_of_one_operation_stay_together(backend):
    def function(x, w):
        values, indices = torch.sort(x @ w, dim=-1)  # the values are seen, and cut the graph
        return values, (values.sin() * 2 + indices).tanh().exp().sum()

    def of_a_layer(x, *weights):
        read, state = torch.gru(x, torch.zeros(1, 3, 4), weights, True, 1, 0.0, True, False, True)
        return read, (state[0].sin() * read[:, 0] + 1).tanh().exp().sum()

    weights = [torch.randn(*shape, requires_grad=True) for shape in ((12, 4), (12, 4), (12,), (12,))]
    for program, args in (
        (function, (torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))),
        (of_a_layer, (torch.randn(3, 5, 4), *weights)),
    ):
        compiled = bothways.compile(program, backend=backend)
        for _ in range(2):
            expected, got = program(*args), compiled(*args)
            torch.testing.assert_close(got, expected)
            found = [torch.autograd.grad(r[0].sum() + r[1], args[1:]) for r in (expected, got)]
            torch.testing.assert_close(found[1], found[0])
        told = [str(compilation.outcome) for compilation in bothways.history(compiled)]
        assert not any("neither a tensor nor a size" in text for text in told)
