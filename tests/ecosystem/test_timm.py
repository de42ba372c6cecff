"""Models of timm from their configurations, compiled: forward, gradients, buffers, state dicts."""

import copy

import pytest
import torch

import bothways

timm = pytest.importorskip("timm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["resnet10t", "test_vit", "test_convnext"])
def test_a_model_is_trained(name):
    plain = timm.create_model(name, num_classes=5, pretrained=False).train()
    model = copy.deepcopy(plain)
    compiled = bothways.compile(model)
    size = plain.pretrained_cfg["input_size"][-1]
    for network in (plain, compiled):
        torch.manual_seed(1)
        network(torch.randn(2, 3, size, size)).pow(2).mean().backward()
    for (key, expected), actual in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-2, atol=1e-3, msg=key)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
