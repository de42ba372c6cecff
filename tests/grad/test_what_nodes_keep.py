"""Whether an autograd node keeps a tensor is known without asking for it: what a checkpoint keeps is computed again."""

import pytest
import torch
from stepping import BACKENDS
from torch import nn
from torch.utils.checkpoint import checkpoint

import bothways
from bothways import torch_compat


def refuse(packed):
    raise AssertionError("it is asked for what it keeps")


@pytest.mark.parametrize("operation", [torch.exp, lambda x: x @ x, lambda x: nn.functional.layer_norm(x, (3,))])
def test_nothing_is_unpacked(operation):
    x = torch.ones(3, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: 7, refuse):
        assert torch_compat.has_saved_tensors(operation(x).grad_fn)
        assert not torch_compat.has_saved_tensors((x + x).grad_fn)


def test_what_is_gone_was_kept():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    assert torch_compat.has_saved_tensors(y.grad_fn)
    y.sum().backward()
    assert torch_compat.has_saved_tensors(y.grad_fn)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_through_checkpoints_are_captured_without_computing_each_again_for_each_node(backend, monkeypatch):
    """Two checkpoints of twelve layers each were computed again 28 times for one capture."""

    def make():
        torch.manual_seed(0)
        return nn.ModuleList(nn.Sequential(*(nn.Linear(4, 4) for _ in range(12))) for _ in range(2))

    def stepper(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            for part in model:
                x = x + checkpoint(part, torch.tanh(x), use_reentrant=False)
            loss = x.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    again = []
    unpacked = torch.utils.checkpoint._recomputation_hook.__init__

    def counted(self, *args, **kwargs):
        again.append(args)
        unpacked(self, *args, **kwargs)

    monkeypatch.setattr(torch.utils.checkpoint._recomputation_hook, "__init__", counted)
    plain, compiled = make(), make()
    run, fast = stepper(plain), bothways.compile(stepper(compiled), backend=backend)
    for size in (3, 3, 5, 6):
        x = torch.linspace(-1, 1, 4 * size).reshape(size, 4)
        again.clear()
        result = fast(x)
        assert len(again) < 12
        torch.testing.assert_close(result, run(x))
    torch.testing.assert_close([*compiled.parameters()], [*plain.parameters()])
