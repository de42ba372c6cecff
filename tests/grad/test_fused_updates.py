"""Fused updates of optimizers, which are one operation of ATen's, in every precision, and with a scaler's numbers."""

import pytest
import torch

import bothways
from bothways.grad.tracing.fused import update_of
from bothways.testing import difference

SETTINGS = {"weight_decay": 0.1, "eps": 1e-6, "maximize": False}
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "amsgrad": True, **SETTINGS}
SGD = {
    "weight_decay": 0.1, "momentum": 0.9, "lr": 0.01, "dampening": 0.1, "nesterov": True, "maximize": True,
    "is_first_step": False,
}  # fmt: skip
# Operation, how many lists like the parameters it takes, whether it takes counters, settings.
UPDATES = {
    "Adam": (torch._fused_adam_, 5, True, ADAM),
    "AdamW": (torch._fused_adamw_, 5, True, ADAM),
    "SGD": (torch._fused_sgd_, 3, False, SGD),
    "Adagrad": (torch._fused_adagrad_, 3, True, {"lr": 0.01, "lr_decay": 0.1, **SETTINGS}),
}
SCALERS = {
    "no scaler": (),
    "a scale": (4.0, 0.0),
    "an infinite gradient": (4.0, 1.0),
}
# How far from ATen: what it computes in another order is rounded once.
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def lists_of(name, dtype):
    _, count, counts, _ = UPDATES[name]
    torch.manual_seed(1)
    lists = [[torch.rand(size).to(dtype) for size in (300, 20)] for _ in range(count)]
    return [*lists, [torch.tensor(3.0), torch.tensor(4.0)]] if counts else lists


def run(name, compiler, lists, scaler):
    operation, _, _, settings = UPDATES[name]

    def update(lists, scaler):
        given = dict(zip(("grad_scale", "found_inf"), scaler, strict=False))
        operation(*lists, **settings, **given)

    compiler(update)(lists, scaler)
    return lists


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", UPDATES)
def test_what_an_update_changes(name, dtype, scaler, backend):
    if name == "SGD" and dtype is not torch.float32:
        pytest.skip("ATen's momentum in half precision is whatever was in memory, on a CPU")
    scaler = [torch.tensor(number) for number in SCALERS[scaler]]
    with bothways.config.patch(kernels_for_small_graphs=True):
        found = run(name, lambda f: bothways.compile(f, backend=backend), lists_of(name, dtype), scaler)
    expected = run(name, lambda f: f, lists_of(name, dtype), scaler)
    assert difference(expected, found, tol=TOLERANCES[dtype]) is None


def test_what_is_not_looked_into():
    [params, grads, averages, squares, largest, steps] = lists_of("AdamW", torch.float32)
    meta = [[item.to("meta") for item in items] for items in (params, grads, averages, squares, largest, steps)]
    assert update_of(torch._fused_adamw_, [params, grads, averages, squares, largest, steps], ADAM)
    assert not update_of(torch._fused_adamw_, meta, ADAM)
    assert not update_of(torch._fused_adamw_, [params, meta[1], averages, squares, largest, steps], ADAM)
    assert not update_of(torch.add, [params, grads], {})
