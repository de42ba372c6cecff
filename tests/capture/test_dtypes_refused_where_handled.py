"""Products, normalisations and losses that refuse dtypes beside each other raise where the user's handler is."""

import warnings

import pytest
import torch
from agreeing import BACKENDS, agree
from torch import nn
from torch.nn import functional as F

import bothways
from bothways.capture.shapes.fakes import Fake
from bothways.capture.shapes.refused_dtypes import may_be_refused
from bothways.capture.shapes.safe_operations import may_fail
from bothways.capture.shapes.shape_rules import Prediction

LAYERS = [nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval(), nn.LayerNorm(3), nn.Linear(3, 3), nn.GroupNorm(1, 3)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_double_precision_beside_single(layer, backend):
    def program(x):
        try:
            return layer(x)
        except RuntimeError:
            return x * 0

    def observe(function, dtype):
        return {"result": function(torch.arange(15.0).view(5, 3).to(dtype)).detach()}

    agree(program, observe, torch.float64, torch.float32, torch.float64, backend=backend)


CLASSES, SHARES = torch.arange(16) % 4, torch.linspace(0, 1, 64).view(16, 4)
LOSSES = {
    "cross_entropy": lambda x, weight: F.cross_entropy(x, CLASSES, weight=weight),
    "smoothed": lambda x, weight: F.cross_entropy(x, CLASSES, weight=weight, label_smoothing=0.1),
    "nll_loss": lambda x, weight: F.nll_loss(x.log_softmax(-1), CLASSES, weight=weight, reduction="none").sum(),
    "a weight": lambda x, weight: F.binary_cross_entropy(x.sigmoid(), SHARES.to(x.dtype), weight=weight),
    "a target": lambda x, weight: F.binary_cross_entropy(x.sigmoid(), SHARES.to(weight.dtype)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_with_a_weight_or_target_of_another_dtype(loss, backend):
    log = []

    def program(x, weight):
        log.append("begun")
        return loss(x * 2 + 1, weight) * 3

    def observe(function, dtypes):
        log.clear()
        x = torch.linspace(-1, 1, 64).view(16, 4).to(dtypes[0]).requires_grad_()
        try:
            result = function(x, torch.ones(4, dtype=dtypes[1]))
            result.backward()
        except RuntimeError as error:
            return {"refused": str(error), "log": list(log)}
        return {"result": result.detach(), "dtype": result.dtype, "gradient": x.grad, "log": list(log)}

    single, double, whole = torch.float32, torch.float64, torch.int64
    calls = (single, single), (double, single), (single, double), (single, double), (single, whole), (double, double)
    agree(program, observe, *calls, backend=backend)


SINGLE, DOUBLE, WHOLE, HALF = torch.float32, torch.float64, torch.int64, torch.bfloat16
NORMS = {
    "layer_norm": lambda x, weight, bias: F.layer_norm(x * 1, (4,), weight, bias),
    "no bias": lambda x, weight, bias: F.layer_norm(x * 1, (4,), weight),
    "group_norm": lambda x, weight, bias: F.group_norm(x * 1, 2, weight, bias),
    "batch_norm": lambda x, weight, bias: F.batch_norm(x * 1, torch.zeros(4), torch.ones(4), weight, bias, True),
    "statistics": lambda x, weight, bias: F.batch_norm(x * 1, weight.detach(), weight.detach().abs(), None, None),
    "instance_norm": lambda x, weight, bias: F.instance_norm(x.expand(3, 3, 4).mT * 1, None, None, weight, bias),
    "huber_loss": lambda x, weight, bias: F.huber_loss(x * 1, weight.expand(3, 4), reduction="none") * bias,
    "soft_margin_loss": lambda x, weight, bias: F.soft_margin_loss(x * 1, weight.expand(3, 4)),
    "addcdiv": lambda x, weight, bias: torch.addcdiv(x * 1, bias, weight),
    "in place": lambda x, weight, bias: (x * 1).mul_(weight),
}
DTYPES = [
    (SINGLE, SINGLE, SINGLE), (SINGLE, HALF, HALF), (SINGLE, torch.float16, SINGLE), (SINGLE, SINGLE, HALF),
    (SINGLE, WHOLE, WHOLE), (SINGLE, DOUBLE, DOUBLE), (HALF, SINGLE, SINGLE), (HALF, SINGLE, HALF),
    (WHOLE, SINGLE, SINGLE),
]  # fmt: skip


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_other_dtypes_than_what_is_normalised(norm, dtypes, backend):
    """Half precision takes parameters in single; everything else is refused, or gives the dtype of the first."""
    log = []

    def program(x, weight, bias):
        log.append("begun")
        result = norm(x, weight, bias)
        log.append(result.dtype)
        return result * 2

    def observe(function, call):
        log.clear()
        values = torch.linspace(0.5, 1.5, 12).view(3, 4), torch.ones(4), torch.ones(4)
        operands = [value.to(dtype) for value, dtype in zip(values, dtypes, strict=True)]
        operands = [operand.requires_grad_(operand.is_floating_point()) for operand in operands]
        shown = {"raised": None, "dtype": None}
        try:
            result = function(*operands)
            shown["dtype"] = result.dtype
            result.sum().backward()
        except RuntimeError as error:
            shown["raised"] = str(error).partition("\n")[0]
        gradients = [None if operand.grad is None else operand.grad.dtype for operand in operands]
        return {**shown, "log": list(log), "gradients": gradients}

    agree(program, observe, 1, 2, backend=backend)


@pytest.mark.parametrize("wrong", [-0.5, 1.5, float("nan")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probability_that_is_none(wrong, backend):
    """Kernels look at what is compared as well as at what it is compared with."""

    def program(x, target, log):
        log.append("begun")
        return F.binary_cross_entropy(x.sigmoid(), target * 1) * 3

    def observe(function, number):
        log, x = [], torch.linspace(-1, 1, 64).requires_grad_()
        try:
            result = function(x, torch.full((64,), number), log)
            result.backward()
        except RuntimeError as error:
            return {"refused": str(error), "log": log}
        return {"result": result.detach(), "gradient": x.grad, "log": log}

    agree(program, observe, 0.5, wrong, 1.0, wrong, backend=backend, tol=1e-5)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_between_two_dtypes(backend):
    def program(x, y, log):
        log.append("begun")
        try:
            return torch.heaviside(y, x * 2) + 1, x * 3
        except RuntimeError as error:
            return str(error), x * 3

    def observe(function, dtypes):
        log, values = [], torch.linspace(-1, 1, 9)
        return {"results": function(values.to(dtypes[0]), values.to(dtypes[1]), log), "log": log}

    calls = (SINGLE, SINGLE), (DOUBLE, SINGLE), (DOUBLE, SINGLE), (DOUBLE, DOUBLE), (SINGLE, WHOLE)
    agree(program, observe, *calls, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [lambda x: ~x + 1, lambda x: torch.bitwise_not(x * 2), lambda x: x.bitwise_not_()])
def test_bits_of_what_has_none(program, backend):
    """Nothing is said of kernels that could not be built."""

    def observe(function, dtype):
        try:
            return {"result": function(torch.arange(4).to(dtype))}
        except (NotImplementedError, TypeError) as error:
            return {"refused": f"{type(error).__name__}: {error}"}

    with warnings.catch_warnings(), bothways.config.patch(kernels_for_small_graphs=True):
        warnings.simplefilter("error")
        agree(program, observe, torch.int64, SINGLE, SINGLE, HALF, torch.bool, torch.float64, backend=backend)


DOUBLE = torch.ones(4, 4, dtype=torch.float64)
PRODUCTS = {
    "linear": nn.Linear(4, 4).double(),
    "matmul": lambda x: x @ DOUBLE,
    "addmm": lambda x: torch.addmm(x, x, DOUBLE),
    "bmm": lambda x: torch.bmm(x[None], DOUBLE[None]),
    "conv1d": lambda x: F.conv1d(x[None], DOUBLE[..., None]),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_double_precision_is_refused_under_autocast_and_changes_are_made_once(product, backend):
    def program(x, y):
        x.add_(1)
        y.add_(1)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return product(x)

    def observe(function, call):
        x, y = torch.zeros(4, 4), torch.zeros(4, 4)
        with pytest.raises(RuntimeError):
            function(x, y)
        return {"x": x, "y": y}

    agree(program, observe, 1, 2, backend=backend, within={"kernels_for_small_graphs": True})


DROPOUTS = [F.dropout, F.alpha_dropout, F.dropout1d, lambda x, p: torch.native_dropout(x, p, True)[0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_of_whole_numbers(dropout, dtype, backend):
    """PyTorch 2.11 refuses most of it, later versions less."""

    def program(x, p):
        try:
            return dropout(x, p)
        except RuntimeError as error:
            return str(error)

    def observe(function, p):
        torch.manual_seed(0)
        return {"result": function(torch.ones(3, 4, dtype=dtype), p), "random": torch.rand(1)}

    agree(program, observe, 0.5, 0.0, 1.0, 0.5, backend=backend, within={"kernels_for_small_graphs": True})


DRAWN = [
    lambda x: torch.rand_like(x), lambda x: torch.randn_like(x), lambda x: torch.rand(2, dtype=x.dtype),
    lambda x: torch.rand_like(x, dtype=torch.float32), lambda x: torch.randn(3, dtype=x.dtype),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_that_are_no_fractions(drawn, dtype, backend):
    def program(x):
        log = []
        try:
            log.append(drawn(x) + 1)
        except (RuntimeError, NotImplementedError):
            log.append("refused")
        try:
            drawn(x)
        except (RuntimeError, NotImplementedError):
            log.append("again")
        return log, x + 1

    def observe(function, size):
        torch.manual_seed(0)
        return {"result": function(torch.ones(size, dtype=dtype)), "random": torch.rand(1)}

    agree(program, observe, 2, 2, 3, backend=backend, within={"kernels_for_small_graphs": True})


@pytest.mark.parametrize(
    "norm, parameters, refused",
    [
        ("layer_norm", (SINGLE, SINGLE), True), ("group_norm", (SINGLE, SINGLE), True),
        ("layer_norm", (HALF, HALF), False), ("batch_norm", (SINGLE, SINGLE), False),
        ("instance_norm", (SINGLE, SINGLE), False),
    ],
)  # fmt: skip
def test_on_a_gpu_some_normalisations_take_one_dtype(norm, parameters, refused):
    """There ATen itself is asked, at each call; under autocast there is one dtype."""

    def operands(device):
        predictions = [Prediction((4,), (1,), dtype, device, False) for dtype in (HALF, *parameters)]
        return [Fake(None, device, prediction) for prediction in predictions]

    assert may_be_refused(norm, operands(torch.device("cuda", 0)), {}) is refused
    assert not may_be_refused(norm, operands(torch.device("cpu")), {})
    with torch.autocast("cpu"):
        assert not may_be_refused(norm, operands(torch.device("cuda", 0)), {})


def test_attention_of_whole_numbers_may_fail():
    """Kernels of the CPU are tried while it is captured, those of a GPU are not."""
    for dtype, fails in ((WHOLE, True), (SINGLE, False)):
        graph = bothways.trace(lambda x: x * 2)(torch.ones(2)).graph
        [node] = graph.find_nodes(op="placeholder")
        attended = graph.call_function(F.scaled_dot_product_attention, (node, node, node), {"attn_mask": node})
        node.meta["example_value"] = torch.ones(2, dtype=torch.bool)
        attended.meta["example_value"] = torch.ones(2, dtype=dtype)
        assert may_fail(attended) is fails
