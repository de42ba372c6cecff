"""Recurrent layers over packed sequences: on native a layer is one call of C each way, whatever the lengths are."""

import types
from unittest import mock

import pytest
import torch
from agreeing import BACKENDS, agree, assert_raises_alike
from aten_counting import computing_calls
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import bothways
from bothways import torch_compat
from bothways.backends.packed import INSTEAD
from bothways.backends.recurrent import PackedLayer
from bothways.testing import difference

in_c = pytest.mark.skipif(torch_compat.product_functions() is None, reason="this PyTorch shows no BLAS")

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
of_all_kinds = pytest.mark.parametrize("kind", KINDS)
on_all_backends = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]
LENGTHS = [5, 2, 3, 1]


def layer_of(kind, *args, **options):
    torch.manual_seed(0)
    return KINDS[kind](4, 6, *args, **options)


def sequences(lengths=LENGTHS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(max(lengths), len(lengths), 4, generator=generator)
    return data.requires_grad_(), torch.tensor(lengths)


def program_of(layer, **options):
    def program(x, lengths, state=None):
        output, last = layer(pack_padded_sequence(x * 2, lengths, enforce_sorted=False, **options), state)
        padded, _ = pad_packed_sequence(output)
        return padded.sin(), *(last if isinstance(last, tuple) else (last,))

    return program


def trained_by(layer, *others):
    """Results of a call, the gradients of all that there is, and the random state afterwards."""
    def observe(function, call):
        torch.manual_seed(1)
        results = function(*call)
        inputs = [one for one in (call[0], *others, *layer.parameters()) if one.requires_grad]
        loss = sum((number * result).sum() for number, result in enumerate(results, 1))
        return {
            "results": results,
            "gradients": torch.autograd.grad(loss, inputs),
            "random state": torch.get_rng_state(),
        }

    return observe


@pytest.fixture
def layers_in_c(monkeypatch):
    """One entry for each layer that C computes for autograd."""
    ran = []
    forward = PackedLayer.forward

    def counting(ctx, layer, *args):
        ran.append(layer.routines.name)
        return forward(ctx, layer, *args)

    monkeypatch.setattr(PackedLayer, "forward", staticmethod(counting))
    return ran


class TestAgreement:
    pytestmark = on_all_backends

    @of_all_kinds
    def test_lengths_change_without_new_programs(self, kind, backend):
        layer = layer_of(kind)
        calls = [sequences(lengths) for lengths in ([5, 2, 3, 1], [4, 4, 2, 3], [1, 1, 2, 6])]
        compiled = agree(program_of(layer), trained_by(layer), *calls, backend=backend)
        count = len(bothways.history(compiled))
        for seed in range(5):
            lengths = torch.randint(1, 9, (4,), generator=torch.Generator().manual_seed(seed)).tolist()
            sum(one.sum() for one in compiled(*sequences(lengths))).backward()
        assert len(bothways.history(compiled)) == count

    @of_all_kinds
    @pytest.mark.parametrize("options", [{"bidirectional": True}, {"bias": False, "num_layers": 2}], ids=str)
    def test_layers_directions_and_no_biases(self, kind, options, backend):
        layer = layer_of(kind, **options)
        agree(program_of(layer), trained_by(layer), sequences(), sequences([2, 7, 7, 1]), backend=backend)

    @pytest.mark.parametrize("kind", ["lstm", "gru"])
    def test_dropout_between_layers_draws_the_same_numbers(self, kind, backend):
        layer = layer_of(kind, 3, dropout=0.4, bidirectional=True)
        agree(program_of(layer), trained_by(layer), sequences(), sequences(), backend=backend)

    @of_all_kinds
    def test_states_that_are_given_have_gradients(self, kind, backend):
        layer = layer_of(kind)
        states = [torch.randn(1, 4, 6, requires_grad=True) for _ in range(1 + (kind == "lstm"))]
        call = (*sequences(), tuple(states) if kind == "lstm" else states[0])
        agree(program_of(layer), trained_by(layer, *states), call, call, backend=backend)

    def test_one_state_for_both(self, backend):
        layer = layer_of("lstm")
        state = torch.randn(1, 4, 6, requires_grad=True)
        call = (*sequences(), (state, state))
        agree(program_of(layer), trained_by(layer, state), call, call, backend=backend)

    @of_all_kinds
    def test_sorted_and_batch_first(self, kind, backend):
        layer = layer_of(kind, batch_first=True)

        def program(x, lengths):
            return (layer(pack_padded_sequence(x, lengths, batch_first=True))[0].data,)

        x = torch.randn(3, 5, 4, requires_grad=True)
        calls = [(x, torch.tensor(lengths)) for lengths in ([5, 3, 1], [5, 5, 2])]
        agree(program, trained_by(layer), *calls, backend=backend)

    @of_all_kinds
    @pytest.mark.parametrize("lengths", [[1, 1, 1], [4, 4, 4], [3]], ids=str)
    def test_lengths_of_one_and_of_one_kind(self, kind, lengths, backend):
        layer = layer_of(kind, bidirectional=True)
        agree(program_of(layer), trained_by(layer), sequences(lengths), sequences(lengths), backend=backend)

    @of_all_kinds
    def test_second_and_third_derivatives(self, kind, backend):
        layer = layer_of(kind)

        def observe(function, call):
            inputs = [call[0], *layer.parameters()]
            output, *_ = function(*call)
            first = torch.autograd.grad(output.sum(), inputs, create_graph=True)
            [second] = torch.autograd.grad(sum(one.square().sum() for one in first), call[:1], create_graph=True)
            return {"first": first, "second": second, "third": torch.autograd.grad(second.sum(), inputs)}

        agree(program_of(layer), observe, sequences(), sequences(), backend=backend, tol=1e-4)

    @of_all_kinds
    def test_many_gradients_at_once(self, kind, backend):
        layer = layer_of(kind)

        def observe(function, call):
            output, *_ = function(*call)
            many = torch.randn(3, *output.shape, generator=torch.Generator().manual_seed(0))
            return {"gradients": torch.autograd.grad(output, call[:1], many, is_grads_batched=True)}

        agree(program_of(layer), observe, sequences(), sequences(), backend=backend)

    @of_all_kinds
    @pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
    def test_without_gradients(self, kind, around, backend):
        def observe(function, call):
            with around():
                results = function(*call)
            return {"results": results, "need gradients": [one.requires_grad for one in results]}

        agree(program_of(layer_of(kind, 2)), observe, sequences(), sequences(), backend=backend)

    @of_all_kinds
    def test_only_some_gradients(self, kind, backend):
        layer = layer_of(kind)
        layer.requires_grad_(False)
        agree(program_of(layer), trained_by(layer), sequences(), sequences(), backend=backend)
        layer.bias_hh_l0.requires_grad_(True)
        call = tuple(one.detach() for one in sequences())
        agree(program_of(layer), trained_by(layer), call, call, backend=backend)

    @of_all_kinds
    def test_what_may_be_changed_before_the_backward(self, kind, backend):
        layer = layer_of(kind)

        def observe(function, call):
            output, *_ = function(*call)
            with torch.no_grad():
                layer.bias_hh_l0.add_(0.5)  # which no derivative reads
            return {"gradients": torch.autograd.grad(output.mul_(2).sum(), [call[0], *layer.parameters()])}

        call = sequences()
        agree(program_of(layer), observe, call, call, backend=backend, reset=layer_state_is_put_back(layer))

    @of_all_kinds
    def test_what_may_not(self, kind, backend):
        layer = layer_of(kind)

        def changing(function):
            def run(*call):
                output, *_ = function(*call)
                with torch.no_grad():
                    layer.weight_hh_l0.add_(0.5)
                output.sum().backward()

            return run

        program = program_of(layer)
        compiled = bothways.compile(program, backend=backend)
        assert_raises_alike(changing(program), changing(compiled), *sequences(), characters=80)

    @of_all_kinds
    def test_a_second_backward_is_refused(self, kind, backend):
        def twice(function):
            def run(*call):
                output, *_ = function(*call)
                torch.autograd.grad(output.sum(), call[:1])
                torch.autograd.grad(output.sum(), call[:1])

            return run

        program = program_of(layer_of(kind))
        compiled = bothways.compile(program, backend=backend)
        assert_raises_alike(twice(program), twice(compiled), *sequences(), characters=60)

    @of_all_kinds
    @pytest.mark.parametrize("sizes", [[2, 3, 1], [3, 2, 2], [4, 2, 1]], ids=str)
    def test_steps_that_do_not_fit_raise_as_plainly(self, kind, sizes, backend):
        layer = layer_of(kind)

        def program(data, sizes):
            return layer(PackedSequence(data, sizes, None, None))[0].data * 2

        compiled = bothways.compile(program, backend=backend)
        assert_raises_alike(program, compiled, torch.randn(6, 4), torch.tensor(sizes))


def layer_state_is_put_back(layer):
    before = {name: one.clone() for name, one in layer.state_dict().items()}
    return lambda: layer.load_state_dict(before)


@in_c
@of_all_kinds
def test_a_layer_is_a_few_operations(kind):
    layer = layer_of(kind, bidirectional=True)
    compiled = bothways.compile(layer, backend="native")
    packed = pack_padded_sequence(*sequences([9, 7, 4, 3]), enforce_sorted=False)

    def step(function):
        function(packed)[0].data.sum().backward(retain_graph=True)

    step(compiled)
    plain, found = (sum(computing_calls(lambda run=run: step(run)).values()) for run in (layer, compiled))
    assert plain > 150
    assert found < 40


@in_c
@of_all_kinds
def test_c_computes_each_layer(kind, layers_in_c):
    compiled = bothways.compile(program_of(layer_of(kind, 2)), backend="native")
    compiled(*sequences())
    assert layers_in_c == [{"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(kind, kind)] * 2


@in_c
def test_a_module_by_itself(layers_in_c):
    layer = layer_of("gru")
    compiled = bothways.compile(layer, backend="native")
    packed = pack_padded_sequence(*sequences(), enforce_sorted=False)
    torch.testing.assert_close(compiled(packed)[1], layer(packed)[1])
    assert layers_in_c == ["gru"]


CASES = {
    "double precision": lambda: (layer_of("lstm").double(), torch.no_grad),
    "projections": lambda: (layer_of("lstm", proj_size=3), torch.no_grad),
    "autocast": lambda: (layer_of("lstm"), lambda: torch.autocast("cpu", torch.bfloat16)),
    "saved tensors": lambda: (layer_of("lstm"), lambda: torch.autograd.graph.saved_tensors_hooks(*2 * [torch.clone])),
    "anomaly mode": lambda: (layer_of("lstm"), lambda: torch.autograd.detect_anomaly(check_nan=False)),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("case", CASES)
def test_what_c_is_not_for_is_pytorchs(case, layers_in_c):
    layer, around = CASES[case]()

    def observe(function, call):
        with around():
            results = function(*call)
        return {"results": results, "dtypes": [one.dtype for one in results]}

    call = tuple(one.to(next(layer.parameters()).dtype) if one.is_floating_point() else one for one in sequences())
    agree(program_of(layer), observe, call, call, backend="native")
    assert not layers_in_c


@of_all_kinds
def test_what_is_called_at_breaks_takes_sequences_that_are_as_long(kind):
    layer, x = layer_of(kind, 2), sequences()[0]
    assert difference(layer(x), INSTEAD[type(layer).forward](layer, x)) is None


@of_all_kinds
def test_hooks_of_weights_and_inputs_are_called_once(kind):
    def run(compile):
        layer, seen = layer_of(kind), []
        (x, lengths), function = sequences(), compile(program_of(layer))
        layer.weight_hh_l0.register_hook(lambda grad: seen.append("weight") or grad * 2)
        layer.weight_ih_l0.register_post_accumulate_grad_hook(lambda weight: seen.append("accumulated"))
        x.register_hook(lambda grad: seen.append("input"))
        function(x, lengths)[0].sum().backward()
        return [x.grad, *(weight.grad for weight in layer.parameters())], sorted(seen)

    expected, found = run(lambda function: function), run(lambda function: bothways.compile(function))
    torch.testing.assert_close(expected[0], found[0])
    assert expected[1] == found[1] == ["accumulated", "input", "weight"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [False, True], ids=["one operation", "all of them"])
def test_an_operation_that_stands_in_for_pytorchs_is_called(kind, whole):
    name = kind if kind in ("lstm", "gru") else f"rnn_{kind}"
    layer, itself, seen = layer_of(kind), getattr(torch._VF, name), []

    def stands_in(*args):
        seen.append(name)
        return itself(*args)

    def observe(function, is_patched):
        seen.clear()
        owner, attribute, by = torch._VF, name, stands_in
        if whole:
            owner, attribute, by = nn.modules.rnn, "_VF", types.SimpleNamespace(**{name: stands_in})
        with mock.patch.object(owner, attribute, by if is_patched else getattr(owner, attribute)):
            return {"results": function(*sequences()), "seen": list(seen)}

    agree(program_of(layer), observe, False, True, False, True, backend="native")


@in_c
def test_a_derivative_of_what_has_changed_is_refused():
    """PyTorch's own operations would not need it; these compute the derivative of a gradient from the inputs."""
    layer = layer_of("gru")
    output, *_ = bothways.compile(program_of(layer), backend="native")(*sequences())
    with torch.no_grad():
        layer.bias_hh_l0.add_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(output.sum(), [layer.weight_hh_l0], create_graph=True)


def test_many_rows_on_several_threads():
    torch.manual_seed(0)
    layer = nn.LSTM(32, 256, bidirectional=True)
    lengths = torch.tensor([4, *[3] * 100, *[2] * 99])
    x = torch.randn(4, 200, 32, requires_grad=True)
    agree(program_of(layer), trained_by(layer), (x, lengths), (x, lengths), backend="native", tol=1e-4)
