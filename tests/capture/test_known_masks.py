"""Data that is known: ``torch.nn.Transformer`` asks whether a mask is the causal one, ``linspace`` makes rates."""

import pytest
import torch
from agreeing import agree

import bothways
from bothways import torch_compat
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]
square = torch.nn.Transformer.generate_square_subsequent_mask


def encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 1)


def observe(model):
    def observed(function, call):
        x = torch.linspace(-1, 1, 2 * call[0] * 8).reshape(2, call[0], 8).requires_grad_()
        result = function(x, *call[1:])
        result.square().sum().backward()
        shown = {"result": result, "gradients": [x.grad, *(p.grad for p in model.parameters())]}
        model.zero_grad()
        return shown

    return observed


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_that_is_made_inside(backend):
    model = encoder()
    program = lambda x: model(x, mask=square(x.shape[1]))
    agree(program, observe(model), (4,), (4,), backend=backend, programs=1, fullgraph=True, tol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_from_outside(backend):
    model = encoder()
    wide = torch.full((4, 4), float("-inf")).triu(2)
    calls = [(4, mask) for mask in (square(4), square(4), wide, square(4), wide)]
    program = lambda x, mask: model(x, mask=mask)
    agree(program, observe(model), *calls, backend=backend, programs=2, fullgraph=True, tol=1e-5)


@pytest.mark.skipif(
    not torch_compat.PRODUCTS_TAKE_SYMBOLS, reason="with PyTorch 2.11 a mask of another size is another program"
)
def test_masks_of_several_sizes_are_one_program():
    model = encoder()
    calls = [(size, square(size)) for size in (4, 5, 6, 7, 9)]
    agree(lambda x, mask: model(x, mask=mask), observe(model), *calls, programs=2, fullgraph=True, tol=1e-5)


def test_what_a_layer_of_the_users_is_told():
    told = []

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.self_attn = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, src, src_mask=None, is_causal=None, src_key_padding_mask=None):
            told.append(is_causal)
            return self.linear(src) * (2 if is_causal else 3)

    model = torch.nn.TransformerEncoder(Layer(), 2, enable_nested_tensor=False)
    compiled = bothways.compile(model, backend="eager")
    x = torch.randn(2, 4, 8)
    for mask in (square(4), torch.zeros(4, 4), None, square(4)):
        assert same(compiled(x, mask), model(x, mask))
    assert told == [True] * 4 + [False] * 8 + [True] * 4


def test_tensors_made_of_constants_decide():
    def function(x):
        table = torch.arange(4) * 2
        if (table > 5).any() and not (table == 3).any():
            x = x + 1
        changed = torch.zeros(2)
        changed[0] = x.sum()
        return x * 2 if changed.any() else x

    compiled = bothways.compile(function, backend="eager")
    for x in (torch.ones(2), torch.ones(2), -torch.ones(2)):
        assert same(compiled(x), function(x))
    (first,) = bothways.history(compiled)[0].breaks
    assert "changed.any()" in str(first)


def test_what_is_drawn_decides_each_time():
    def function(x):
        return x + 1 if torch.rand(()) > 0.5 else x - 1

    compiled = bothways.compile(function, backend="eager")
    torch.manual_seed(0)
    expected = [function(torch.ones(2)) for _ in range(6)]
    torch.manual_seed(0)
    assert same([compiled(torch.ones(2)) for _ in range(6)], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_tensors_that_are_made_of_constants(backend):
    def program(x):
        rates = torch.linspace(0, 0.5, 3).tolist()
        last, middle = torch.tensor(3), torch.tensor([[1]])
        numbers = [int(torch.tensor(2.5)), float(last), last.item(), int(middle), torch.arange(4).sum().item()]
        return x * rates[2], rates, numbers, ["a", "b", "c", "d"][last], [x for _ in range(middle)], (1, 2, 3)[middle:]

    observe = lambda function, x: {"results": function(x)}
    agree(program, observe, *2 * [torch.ones(2)], backend=backend, fullgraph=True, programs=1)


def test_a_number_of_several_elements_raises_as_in_plain_python():
    program = lambda x: x + torch.arange(3).item()
    for function in (program, bothways.compile(program, backend="eager")):
        with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
            function(torch.ones(2))


def test_what_was_written_to_a_tensor_of_constants_is_not_known():
    def program(x):
        made = torch.zeros(2)
        made[0] = x[0].detach()
        return x * made[0].item(), made.tolist()

    observe = lambda function, x: {"results": function(x)}
    agree(program, observe, torch.ones(2), torch.full((2,), 3.0))


WRITES = {
    "out=": lambda made, value: torch.add(value, 1, out=made),
    "a list": lambda made, value: torch._foreach_add_([made], [value]),
    "what comes behind a list": lambda made, value: torch._amp_foreach_non_finite_check_and_unscale_(
        [value.clone() / 0], made, torch.ones(())
    ),
    "a view": lambda made, value: made.view(1)[:1].copy_(value),
    "what was written before": lambda made, value: torch.nn.functional.relu(made.add_(value), inplace=True),
}


@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_whatever_writes_to_a_tensor_of_constants(backend, written):
    def program(x):
        made = torch.zeros(())
        WRITES[written](made, x.detach().sum())
        return x * (2 if made else 3), made.item()

    observe = lambda function, x: {"results": function(x)}
    agree(program, observe, torch.ones(2), torch.ones(2), torch.full((2,), 3.0), backend=backend)


def product():
    return torch.ones(2, 2) @ torch.full((2, 2), 1 / 3)


def made_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = product()
        wide = product().float()
    return x * made[0, 0].item(), made.tolist(), wide.tolist(), bool(wide[0, 0] > 0.667)


def read_under_autocast(x):
    made = product()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x * made[0, 0].item(), made.tolist(), bool(made[0, 0] > 0.667)


def made_and_read_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = product()
        return x * made[0, 0].item(), made.tolist(), bool(made[0, 0] > 0.667)


@pytest.mark.parametrize("program", [made_under_autocast, read_under_autocast, made_and_read_under_autocast])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_known_was_rounded_where_it_was_made(backend, program):
    observe = lambda function, x: {"results": function(x)}
    agree(program, observe, torch.ones(2), torch.ones(2), torch.full((2,), 3.0), backend=backend)


def test_a_long_list_is_no_thousands_of_values():
    def program(x):
        return x + len(torch.arange(100_000).tolist())

    compiled = bothways.compile(program, backend="eager")
    for x in 2 * [torch.ones(2)]:
        assert same(compiled(x), program(x))
    assert any("tolist" in str(one) for one in bothways.explain(compiled).breaks)
