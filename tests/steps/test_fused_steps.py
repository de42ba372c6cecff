"""Whole steps with a fused optimizer: one graph, which runs once a step."""

import copy

import pytest
import torch
from aten_counting import computing_calls
from torch import nn

import bothways


def stepping(model, fused):
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "on lists"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_the_forward_runs_once_and_the_loss_is_spent(backend, fused):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    other = copy.deepcopy(model)
    plain, compiled = stepping(model, fused), bothways.compile(stepping(other, fused), backend=backend)
    for seed in range(4):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        expected, found = plain(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad
        for loss in (expected, found):
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    calls = computing_calls(lambda: compiled(x))
    assert calls["aten::addmm"] + calls["aten::mkldnn_linear"] <= 2 and calls["aten::native_layer_norm"] <= 1


def test_an_update_that_cannot_be_taken_apart_leaves_the_backward_to_pytorchs_engine(monkeypatch):
    """The graph is cut around the update, and the backward goes through the compiled part before it."""
    from bothways.grad.tracing import origins

    monkeypatch.setattr(origins, "update_of", lambda *args, **kwargs: None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    other = copy.deepcopy(model)
    plain, compiled = stepping(model, True), bothways.compile(stepping(other, True), fullgraph=True)
    with bothways.config.patch(kernels_for_small_graphs=True):
        for seed in range(4):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), plain(x))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    calls = computing_calls(lambda: compiled(x))
    assert calls["aten::addmm"] + calls["aten::mkldnn_linear"] <= 2
