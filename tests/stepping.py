"""What the tests of whole training steps share: the same training plain and compiled, compared after every step."""

import contextlib
import copy

import torch
from agreeing import assert_same
from seeding import seeded
from staying import stays_compiled
from torch.utils._pytree import tree_leaves

import bothways
from bothways.testing import RecordGraphs

BACKENDS = ["eager", "aot_eager", "native"]


def state_of(training):
    """Everything that a step may change: parameters, gradients, buffers, optimizers, random numbers, what it logged."""
    found = {"random state": torch.get_rng_state()}
    for name, value in training.items():
        if isinstance(value, torch.nn.Module):
            found[f"{name}: state"] = {key: tensor.detach().clone() for key, tensor in value.state_dict().items()}
            found[f"{name}: gradients"] = {
                key: None if parameter.grad is None else parameter.grad.clone()
                for key, parameter in value.named_parameters()
            }
            found[f"{name}: strides of gradients"] = {
                key: None if parameter.grad is None else parameter.grad.stride()
                for key, parameter in value.named_parameters()
            }
            found[f"{name}: gradients that need gradients"] = [
                key for key, parameter in value.named_parameters()
                if parameter.grad is not None and parameter.grad.requires_grad
            ]  # fmt: skip
        elif isinstance(value, torch.optim.Optimizer):
            found[f"{name}: state"] = copy.deepcopy(value.state_dict())
        elif isinstance(value, (list, dict)):
            found[name] = copy.deepcopy(value)
    return found


def train(make, batches, compile_step):
    """What five or so steps leave behind, each: ``make`` gives the step and, by name, what it changes.

    The ``before`` of a training is called with each batch, and never compiled: it gives what the step is called with.
    """
    torch.manual_seed(0)
    step, training = make()
    step = compile_step(step)
    before = training.get("before", lambda *batch: batch)
    torch.manual_seed(1)
    trail = []
    for batch in batches:
        result = step(*before(*batch))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        flags = [(tensor.requires_grad, tensor.is_leaf) for tensor in tensors]
        trail.append({"result": result, "needs gradients, is a leaf": flags, **state_of(training)})
    return trail


def agree(make, batches, backend, *, programs=None, fullgraph=True, tol=1e-5):
    """Plain and compiled training leave the same behind, step by step; ``programs`` is how many were compiled."""
    plain = train(make, batches, lambda step: step)
    compiled = []

    def compile_step(step):
        compiled.append(bothways.compile(step, backend=backend, fullgraph=fullgraph))
        return compiled[0]

    with stays_compiled(compiled) if fullgraph else contextlib.nullcontext():
        found = train(make, batches, compile_step)
    for number, (expected, own) in enumerate(zip(plain, found, strict=True)):
        assert_same(expected, own, f"step {number}, backend {backend}", tol=tol)
    if programs is not None:
        made = [one for one in bothways.history(compiled[0]) if one.graphs]
        assert len(made) == programs, [str(one.failed_guard) for one in made]
    return compiled[0]


def graphs_of(make, batches):
    """The graphs that a step is captured as."""
    recorded = RecordGraphs()
    torch.manual_seed(0)
    step, _ = make()
    step = bothways.compile(step, backend=recorded, fullgraph=True)
    for batch in batches:
        step(*batch)
    return recorded


def batches(count=5, size=6, features=6, classes=3):
    generator = seeded(7)
    return [
        (torch.randn(size, features, generator=generator), torch.randint(0, classes, (size,), generator=generator))
        for _ in range(count)
    ]
