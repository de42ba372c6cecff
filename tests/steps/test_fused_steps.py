"""Whole steps with a fused optimizer: one graph, which runs once a step."""

import copy
import operator
from functools import partial

import pytest
import torch
import torch.fx
from aten_counting import computing_calls
from seeding import seeded
from torch import nn

import bothways
from bothways.grad.cutting.split import sections_of
from bothways.node_facts import note_of_node
from bothways.runtime.gradients import gradients


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
        x = torch.randn(4, 8, generator=seeded(seed))
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


def test_a_backward_that_leaves_its_part_of_a_cut_graph_is_pytorchs():
    graph = torch.fx.Graph()
    x, weight, tangent = map(graph.placeholder, ("x", "weight", "tangent"))
    early = graph.call_method("sin", (weight,))
    between = graph.call_method("cos", (x,))
    late = graph.call_method("mul", (early, between))
    found = graph.call_function(gradients, ((late,), (weight,), (tangent,), False, False))
    first = graph.call_function(operator.getitem, (found, 0))
    after = graph.call_method("neg", (first,))
    graph.output((after,))
    for node in (x, weight, tangent, early, between, late, first, after):
        node.meta["example_value"] = torch.ones(3)
    sections = sections_of(graph, [], grad=True)
    assert [(section.nodes, section.as_captured) for section in sections] == [
        ([early, between, late, found, first, after], False)
    ]
    note_of_node(between, as_captured=True)
    sections = sections_of(graph, [], grad=True)
    assert [(section.nodes, section.as_captured) for section in sections] == [
        ([early], False), ([between], True), ([late], False), ([found, first], True), ([after], False),
    ]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False], ids=["step", "update"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_state_of_another_dtype_is_refused_and_counted_once(name, whole, backend):
    """Counters are added to before ATen refuses the update."""

    def observe_step(compile):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        momentum = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True, **momentum)

        def step(x):
            optimizer.zero_grad()
            model(x).sum().backward()
            if whole:
                optimizer.step()

        function, update = (compile(step), optimizer.step) if whole else (step, compile(optimizer.step))
        said = []
        for number in range(5):
            if number == 3:
                states = optimizer.state[model[1].weight]
                key = next(key for key in states if key != "step")
                states[key] = states[key].double()
            try:
                function(torch.ones(2, 3))
                if not whole:
                    update()
                said.append(None)
            except RuntimeError as error:
                said.append(str(error).partition("\n")[0])
        counts = [state["step"].item() for state in optimizer.state.values() if "step" in state]
        return said, counts, [param.detach() for param in model.parameters()]

    expected, found = observe_step(lambda function: function), observe_step(partial(bothways.compile, backend=backend))
    assert expected[:2] == found[:2] and expected[0][-1] is not None
    torch.testing.assert_close(expected[2], found[2])
