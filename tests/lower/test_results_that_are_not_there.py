"""Results that ATen only gives where there will be a backward: what a recurrent layer leaves for its own."""

import pytest
import torch
from agreeing import agree

BACKENDS = ["aot_eager", "native"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [False, True])
def test_a_recurrent_layer_without_gradients_is_run_by_its_graph(training, backend):
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True).train(training)

    def program(x):
        out, (hidden, cell) = layer(x)
        return out * 2, hidden, cell

    def observe(function, call):
        with torch.no_grad():
            return {"results": function(torch.linspace(-1, 1, 3 * call).view(call, 1, 3))}

    calls = [5, 5, 7, 7, 6]
    options = {"fullgraph": True, "programs": 2, "within": {"kernels_for_small_graphs": True}}
    agree(program, observe, *calls, backend=backend, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_looks_at_the_layer_afterwards(backend):
    def program(layer, x):
        layer(x)[0].square().mean().backward()
        with torch.no_grad():
            return layer(x)[0] + 1

    def observe(function, call):
        torch.manual_seed(0)
        layer = torch.nn.LSTM(3, 4)
        result = function(layer, torch.linspace(-1, 1, 15).view(5, 1, 3))
        return {"result": result, "gradients": [parameter.grad for parameter in layer.parameters()]}

    agree(program, observe, 0, 0, backend=backend, fullgraph=True, within={"kernels_for_small_graphs": True})
