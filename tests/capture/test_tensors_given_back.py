"""Operations that give back the tensor they are given leave it where it was: hooks see all of its uses.

``contiguous()``, ``float()``, ``to(...)``, ``dropout`` outside of training and ``broadcast_tensors`` give back their
own argument, where it is as they would make it. A backward in the function stops at the hooked tensor, whichever use
its gradients come by.
"""

import agreeing
import pytest
import torch
import torch.nn.functional as F
from seeding import seeded

GIVING_BACK = {
    "contiguous": lambda h: h.contiguous(),
    "float": lambda h: h.float(),
    "to": lambda h: h.to(torch.float32),
    "dropout": lambda h: F.dropout(h, 0.5, False),
    "broadcast": lambda h: torch.broadcast_tensors(h, h.sin())[0],
}


def on_module(layer, seen):
    layer.register_full_backward_hook(lambda module, given, got: seen.append(got[0].clone()))
    return lambda h: h


def on_tensor(layer, seen):
    def hooked(h):
        h.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
        return h

    return hooked


def on_changed(layer, seen):
    def hooked(h):
        h = (h * 1).add_(1)
        h.register_hook(lambda grad: seen.append(grad.clone()))
        return h

    return hooked


@pytest.mark.parametrize("backend", agreeing.BACKENDS)
@pytest.mark.parametrize("place", [on_module, on_tensor, on_changed])
def test_hooks_of_a_tensor_that_operations_give_back(backend, place):
    torch.manual_seed(0)
    layer, seen = torch.nn.Linear(3, 4), []
    hooked = place(layer, seen)

    def step(x, names):
        total = 0
        for name in names:
            h = hooked(layer(x))
            before = h.sin()
            total = total + (GIVING_BACK[name](h) * before).sum() + h.sum()
        total.backward()
        return total.detach()

    def observe(function, names):
        seen.clear()
        layer.zero_grad()
        result = function(torch.ones(2, 3), names)
        return {"result": result, "gradients": [p.grad for p in layer.parameters()], "seen": list(seen)}

    calls = [("contiguous", "float"), ("contiguous", "float"), ("dropout", "broadcast", "to")]
    agreeing.agree(step, observe, *calls, backend=backend, fullgraph=True, programs=2)


@pytest.mark.parametrize("backend", agreeing.BACKENDS)
def test_a_gradient_that_is_kept_of_a_tensor_that_operations_give_back(backend):
    def step(x):
        h = x * 2
        h.retain_grad()
        before = h.sin()
        (h.contiguous() * before + h.float()).sum().backward()
        return h.grad

    def observe(function, seed):
        x = torch.randn(3, generator=seeded(seed)).requires_grad_()
        return {"kept": function(x), "gradient": x.grad}

    agreeing.agree(step, observe, 0, 0, backend=backend, fullgraph=True, programs=1)
