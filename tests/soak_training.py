"""Runs a generated training plainly and compiled for five steps, and tells the first thing that differs.

Each run is a module of its own. After every step everything that training changes is compared: parameters, buffers,
gradients with their strides, what optimizers and schedules remember, random numbers, what hooks have seen, what the
step returned or raised.
"""

import copy
import warnings

import soak_checking
import soak_rounding
import soak_ways
import torch
from torch.utils._pytree import tree_leaves

import bothways

LARGEST = 1e15
SIZES = (6, 6, 6, 6, 4)  # the last batch is smaller


def batch(data, dtype, number):
    """The arguments of a step."""
    generator = torch.Generator().manual_seed(number)
    size = SIZES[number]
    y = torch.randint(0, 3, (size,), generator=generator)
    if data == "tokens":
        return torch.randint(0, 11, (size, 4), generator=generator), y
    shape = (size, 2, 4, 4) if data == "image" else (size, 6)
    return torch.randn(shape, generator=generator).to(dtype), y


def state_of(value):
    """What is remembered by something that is trained, or trains."""
    if value is None:
        return None
    found = {"state": soak_checking.snapshot(copy.deepcopy(value.state_dict()))}
    if isinstance(value, torch.nn.Module):
        for name, parameter in value.named_parameters():
            gradient = parameter.grad
            shown = None if gradient is None else (gradient.detach().clone(), gradient.stride(), gradient.requires_grad)
            found[name] = (shown, parameter.requires_grad, parameter.stride())
        # What a buffer was computed from is to be forgotten, which its values do not show.
        found["histories"] = [(name, buffer.requires_grad, buffer.is_leaf) for name, buffer in value.named_buffers()]
    return found


def refused(error):
    """An exception as it is seen; of what autograd says when something was changed, not how it calls its nodes."""
    kind, message, *others = soak_checking.raised(error) or (None, "")
    return (kind, message.partition("modified by an inplace operation")[0], *others)


def training(source, backend=None, functions=None, prepare=None):
    """What every step shows; ``functions`` receives what was compiled, and ``prepare`` sees the module first."""
    torch.manual_seed(0)
    module = soak_checking.load(source, "<soak>")
    if prepare is not None:
        prepare(module)
    step = module.TARGET
    if backend is not None:
        step = bothways.compile(step, backend=backend)
        if functions is not None:
            functions.append(step)
    dtype = next(module.MODEL.parameters()).dtype
    shown = []
    for number in range(len(SIZES)):
        torch.manual_seed(number)
        module.between(number)
        x, y = batch(module.DATA, dtype, number)
        error = result = None
        try:
            result = step(*module.GIVEN, x, y, number)
        except Exception as caught:
            error = caught
        shown.append({
            "raised": refused(error), "result": soak_checking.snapshot(result), "log": list(module.LOG),
            **{name: state_of(value) for name, value in module.STATE.items()},
            "random state": torch.get_rng_state(), "settings": (torch.is_grad_enabled(), module.MODEL.calls),
        })  # fmt: skip
        module.LOG.clear()
        del error, result
    return shown


def plainly(source, prepare=None):
    """What the steps of a training show when nothing is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return training(source, prepare=prepare)
        finally:
            torch.set_grad_enabled(True)


def disagreement(source, way=soak_ways.EAGER, plain=None):
    """The first thing in which the compiled training is not like the plain one; None when there is none.

    ``plain`` is what ``plainly`` gave, for those who look at several ways.
    """
    tol = 1e-6 if ".double()" in source else 5e-2 if "autocast" in source else 2e-4
    expected = plain or plainly(source)
    functions = []
    try:
        with warnings.catch_warnings(), soak_ways.taken(way) as failures:
            warnings.simplefilter("ignore")
            got = training(source, way.backend, functions)
            catches = any(step["raised"][0] for step in expected) or "except" in source
            mistake = soak_ways.mistake(*functions, failures, catches=catches)
    finally:
        torch.set_grad_enabled(True)
        bothways.reset()
    whole = steps_before_it_runs_away(expected)
    expected, got = expected[:whole], got[:whole]
    ordered = in_order_of_names if way.backend != "eager" else list
    expected, got = ordered(expected), ordered(got)
    place = soak_rounding.beyond_rounding(
        expected, got, lambda: map(ordered, soak_rounding.rounded(lambda: plainly(source)[:whole])), tol
    )
    if place is not None:
        number, part, found = place
        return f"step {number}, {part}: {found}"
    return mistake


def steps_before_it_runs_away(steps):
    """How many steps there are to compare: from weights whose squares are too large for single precision it is chance
    in what order sums are made whether a loss is infinite or no number."""
    for number, step in enumerate(steps):
        tensors = [leaf for leaf in tree_leaves(step["model"]) if isinstance(leaf, torch.Tensor) and leaf.numel()]
        if any((tensor.abs() > LARGEST).any() for tensor in tensors):
            return number + 1
    return len(steps)


def in_order_of_names(steps):
    """Steps in whose logs only the order of those of one name counts: one compiled node has all parameters behind it,
    and PyTorch chooses which of them is first."""
    return [
        {**step, "log": sorted(step["log"], key=lambda entry: str(entry[0] if isinstance(entry, tuple) else entry))}
        for step in steps
    ]
