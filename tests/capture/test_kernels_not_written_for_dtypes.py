"""What ATen's kernels are not written for raises where it stands, also where nothing is read of it."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

import bothways
from bothways.capture.shapes import refused_kernels
from bothways.capture.shapes.fakes import Fake
from bothways.capture.shapes.refused_dtypes import may_be_refused
from bothways.capture.shapes.shape_rules import Prediction

FLOATS = torch.arange(6.0).view(2, 3)
WHOLE, TRUTHS, HALF = FLOATS.long(), FLOATS > 2, FLOATS.half()
COMPLEX = torch.complex(FLOATS, FLOATS)
REFUSED = {
    "softmax": (lambda x: torch.softmax(x, 0), WHOLE),
    "softmax of torch.nn": (lambda x: F.softmax(x, 0), WHOLE),
    "softmax of a size that is large": (lambda x: x.expand(700, 2, 3).softmax(0), WHOLE),
    "gelu": (F.gelu, WHOLE),
    "gelu of nothing": (lambda x: F.gelu(x[:0]), WHOLE),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), WHOLE),
    "lgamma": (torch.lgamma, COMPLEX),
    "sort": (torch.sort, COMPLEX),
    "an operator": (lambda x: x - x, TRUTHS),
    "negation": (lambda x: -x, TRUTHS),
    "a method": (lambda x: x.bitwise_left_shift(x), TRUTHS),
    "in place": (lambda x: x.clone().erfinv_(), WHOLE),
    "normal_": (lambda x: x.clone().normal_(), WHOLE),
    "random numbers": (lambda x: torch.rand(2, dtype=x.dtype, device=x.device), WHOLE),
    "a list": (lambda x: torch.linalg.multi_dot([x.t(), x, x.t()]), TRUTHS),
    "inverse": (lambda x: torch.linalg.inv(x[:, :2]), HALF),
    "threshold": (lambda x: F.threshold(x, 0.1, -9.0), WHOLE.byte()),
    "full_like": (lambda x: torch.full_like(x, 300), WHOLE.byte()),
    "unfold": (lambda x: F.unfold(x[None, None], 2), WHOLE),
}
ACCEPTED = {
    "sum": (torch.sum, TRUTHS),
    "cumsum": (lambda x: x.cumsum(0), WHOLE),
    "product": (lambda x: x @ x.t(), WHOLE),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), HALF),
    "embedding": (lambda x: F.embedding(x, torch.ones(9, 2)), WHOLE),
    "dropout": (lambda x: F.dropout(x), HALF),
    "random": (lambda x: x.clone().random_(), WHOLE),
}
backends = pytest.mark.parametrize("backend", BACKENDS)


@backends
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("operation, x", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_raises_though_nothing_reads_it(operation, x, fullgraph, backend):
    log = []

    def program(x):
        log.append("before")
        operation(x)
        log.append("after")
        return x + 1

    def observe(function, x):
        log.clear()
        with pytest.raises(RuntimeError) as caught:
            function(x)
        return {"raised": str(caught.value), "log": list(log)}

    x = x.cpu()  # kernels of a GPU are not tried
    agree(program, observe, x, x, backend=backend, fullgraph=fullgraph)


@backends
@pytest.mark.parametrize("operation, x", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_comes_to_the_handler(operation, x, backend):
    log = []

    def program(x):
        try:
            return operation(x)
        except RuntimeError as error:
            log.append(type(error).__name__)
            return x * 2

    def observe(function, x):
        log.clear()
        return {"result": function(x), "log": list(log)}

    agree(program, observe, x, x, backend=backend)


@backends
@pytest.mark.parametrize("operation, x", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_accepted_is_captured_and_draws_nothing_more(operation, x, backend):
    def observe(function, x):
        torch.manual_seed(1)
        return {"result": function(x), "next": torch.rand(1)}

    agree(operation, observe, x, x, backend=backend, fullgraph=True)


def test_a_kernel_is_tried_once_a_process():
    def program(x):
        return x.float().cumsum(0), x.cumprod(0)

    x = WHOLE.cpu()
    bothways.compile(program)(x)
    before = refused_kernels._refusal.cache_info()
    bothways.compile(lambda x: program(x))(x)
    after = refused_kernels._refusal.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


def test_a_number_that_a_dtype_does_not_hold_is_left_to_a_gpu():
    """Whose kernels are not tried, and which refuses it as the CPU does."""
    for device, refused in (("cuda:0", True), ("cpu", False)):
        place = torch.device(device)
        small = Fake(None, place, Prediction((2, 3), (3, 1), torch.uint8, place, False))
        assert may_be_refused("_threshold", (small, 0.1, -9.0), {}) is refused
        assert may_be_refused("full_like", (small, 300), {}) is refused
        assert not may_be_refused("full_like", (small, 200), {})


@pytest.mark.parametrize("device", ["meta", torch.device("meta")], ids=repr)
def test_trials_are_made_on_the_cpu_alone(device, monkeypatch):
    """On a GPU they would draw numbers that the program is to draw."""
    tried, refusal = [], refused_kernels._refusal
    monkeypatch.setattr(refused_kernels, "_refusal", lambda *trial: (tried.append(trial[1]), refusal(*trial))[1])

    def program(x, device):
        return torch.rand((2, 3), dtype=torch.float16, device=device), torch.rand_like(x, device=device)

    x = torch.ones(2, dtype=torch.float16, device="cpu")
    bothways.compile(program, backend="eager", fullgraph=True)(x, device)
    assert tried == []
    bothways.compile(program, backend="eager", fullgraph=True)(x, "cpu")
    assert tried == [torch.rand, torch.rand_like]


def test_numbers_that_another_thread_draws_during_trials_are_not_drawn_again(monkeypatch):
    """Where the trial itself draws none, nothing is put back; here what makes its tensors stands for the thread."""
    drawn, made = [], refused_kernels.Few.tensor
    monkeypatch.setattr(refused_kernels.Few, "tensor", lambda few: (drawn.append(torch.rand(()).item()), made(few))[1])
    refused_kernels._refusal.cache_clear()
    x = torch.ones(3, 2, dtype=torch.float16, device="cpu")
    bothways.compile(lambda x: (x * 3.5).cumsum(0) @ x.t(), backend="eager", fullgraph=True)(x)
    assert len(set(drawn)) == len(drawn) > 2
