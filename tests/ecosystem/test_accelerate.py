"""accelerate knows backends by a list of its own: ours comes in by the drop-in, or compiled before ``prepare``."""

import pytest
import torch

import bothways

accelerate = pytest.importorskip("accelerate")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def trained(compile=lambda model: model, **settings):
    torch.manual_seed(0)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(compile(model), optimizer)
    losses = []
    for x in [torch.randn(4, 8) for _ in range(4)]:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, accelerator.get_state_dict(accelerator.unwrap_model(model))


def test_compiled_before_it_is_prepared():
    plain, names = trained()
    compiled, ours = trained(bothways.compile)
    assert plain == pytest.approx(compiled, abs=1e-5) and names.keys() == ours.keys()


@pytest.mark.parametrize("name", ["inductor", "bothways"])
def test_by_the_drop_in(name):
    plain, names = trained()
    bothways.install()
    try:
        compiled, ours = trained(dynamo_backend=name)
    finally:
        bothways.uninstall()
    assert plain == pytest.approx(compiled, abs=1e-5) and names.keys() == ours.keys()
