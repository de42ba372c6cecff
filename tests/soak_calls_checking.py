"""Runs a function that is called in many ways, plainly and compiled, and tells the first call that differs.

One compiled function takes all the calls of a program, so a program that was compiled for one of them and is taken for
another one shows. After each call there may be a backward through its results, or through those of a call before.
"""

import contextlib
import io
import linecache
import random
import re
import types
import warnings

import soak_rounding
import soak_statements_checking
import soak_ways
import torch
from soak_statements_checking import Snapshot

import bothways

NAMES = "abnosdf"
# What compiled graphs say where eager gives a gradient, as docs/reliability.md has it.
SAID = ("modified by an inplace operation", "through the graph a second time")


def shown(error):
    """An error that is caught inside: what it is and says."""
    return type(error).__name__, re.sub(r" at 0x[0-9a-f]+", "", str(error)).partition("\n")[0][:80]


def load(source, compiled):
    module = types.ModuleType("soaked")
    linecache.cache["<soak>"] = (len(source), None, source.splitlines(keepends=True), "<soak>")
    module.compiled, module.shown = compiled, shown
    exec(compile(source, "<soak>", "exec"), vars(module))
    return module


class Backwards:
    """What may come after a call."""

    def __init__(self, results, leaves):
        self.results, self.leaves = results, leaves

    def _total(self, which):
        found = soak_statements_checking.tensors_in(self.results[which], [])
        parts = [(tensor * (1 + number)).sum() for number, tensor in enumerate(found)]
        parts = [part.abs().double() if part.is_complex() else part.double() for part in parts]
        return sum(parts) if parts else None

    def backward(self, which=-1, retain_graph=False):
        if -len(self.results) <= which < len(self.results) and (total := self._total(which)) is not None:
            total.backward(retain_graph=retain_graph)

    def grads(self):
        if (total := self._total(-1)) is not None and self.leaves:
            self.results.append(torch.autograd.grad(total, self.leaves, allow_unused=True))

    def one_by_one(self):
        """A derivative by one argument after the other, of a graph that is not retained."""
        if (total := self._total(-1)) is not None:
            for leaf in self.leaves:
                self.results.append(torch.autograd.grad(total, leaf, allow_unused=True))

    def twice(self):
        """A derivative of the derivative."""
        if (total := self._total(-1)) is None or not self.leaves:
            return
        grads = torch.autograd.grad(total, self.leaves, create_graph=True, allow_unused=True)
        norms = [(grad.abs() ** 2).sum().double() for grad in grads if grad is not None and grad.requires_grad]
        if norms:
            sum(norms).backward()

    def changed(self):
        """Arguments are changed after the function has used them."""
        with torch.no_grad():
            for leaf in self.leaves:
                leaf.mul_(2)


def made(module, row):
    """The arguments of a call, made in the program's own names; what is to be changed before it is changed."""
    space = vars(module)
    with contextlib.suppress(Exception):
        exec(row["between"], space)
    try:
        for name in NAMES:
            exec(f"{name} = {row[name]}", space)
        return eval(f"(lambda *args, **kwargs: (args, kwargs))({', '.join(NAMES)}, {row['more']})", space)
    finally:
        for name in NAMES:
            space.pop(name, None)


def call(module, function, row, number, results):
    """What one call shows."""
    torch.manual_seed(number)
    random.seed(number)
    module.LOG.clear()
    try:
        args, kwargs = made(module, row)
    except Exception as error:
        return {"made": shown(error)}
    tensors = [each for each in (*args[:2], module.W, module.NET.w) if isinstance(each, torch.Tensor)]
    versions = [(each, each._version) for each in tensors if not each.is_inference()]
    error, result, printed = None, None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            with eval(row["around"], vars(module)) if row["around"] else contextlib.nullcontext():
                result = function(*args, **kwargs)
        except Exception as caught:
            error = caught
    held = [getattr(module, name, None) for name in module.STATE]
    snapshot = Snapshot()
    parts = {
        "raised": snapshot(error),
        "settings": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype())),
        "state": snapshot([result, args, kwargs, held, module.watched(), printed.getvalue()]),
        "versions": [each._version > version for each, version in versions],
        "random numbers": (torch.rand(1), random.random()),
    }
    torch.set_grad_enabled(True)
    results.append(result)
    parts["backward"], parts["said"] = afterwards(row["after"], results, tensors)
    parts["afterwards"] = Snapshot()([result, args, held, results[-1]]) if parts["backward"] == "ended" else None
    if parts["backward"] != "ended":  # what a backward that is refused midway leaves behind is another matter
        for each in (*tensors, *module.NET.parameters()):
            each.grad = None
    if isinstance(result, tuple) and isinstance(result[-1], torch.Tensor):
        module.KEPT[:] = [result[-1]]
    return parts


def afterwards(text, results, tensors):
    """How what comes after a call ends, and what an error says; of that only what may differ is looked at, since it may
    name nodes of the graph."""
    try:
        leaves = [each for each in {id(t): t for t in tensors}.values() if each.requires_grad and each.is_leaf]
        backwards = Backwards(results, leaves)
        exec(text, {name: getattr(backwards, name) for name in ("backward", "grads", "twice", "changed")})
    except Exception as error:
        return type(error).__name__, str(error) if "retain_graph" not in text else ""
    return "ended", ""


def calls(module, function):
    results = []
    return [call(module, function, row, number, results) for number, row in enumerate(module.CALLS)]


@contextlib.contextmanager
def put_back():
    """Programs may replace a layer's forward, and leave modes as they are where they raise."""
    forward = torch.nn.ReLU.forward
    try:
        yield
    finally:
        torch.nn.ReLU.forward = forward
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


def plainly(source):
    """What the calls of a program show when nothing is compiled."""
    with warnings.catch_warnings(), put_back():
        warnings.simplefilter("ignore")
        module = load(source, lambda function: function)
        return calls(module, module.target)


def disagreement(source, way=soak_ways.EAGER, plain=None):
    """The first thing in which the compiled program is not like the plain one; None when there is none."""
    expected = plain or plainly(source)
    try:
        with warnings.catch_warnings(), soak_ways.taken(way) as failures, put_back():
            warnings.simplefilter("ignore")
            module = load(source, lambda function: bothways.compile(function, backend=way.backend))
            function = bothways.compile(module.target, backend=way.backend)
            got = calls(module, function)
            mistake = soak_ways.mistake(function, failures, catches=True)
    finally:
        bothways.reset()
    count = next((at for at, pair in enumerate(zip(expected, got, strict=True)) if is_left(*pair)), len(got))
    if any(before.keys() != after.keys() for before, after in zip(expected[:count], got[:count], strict=True)):
        return "arguments can be made in one of the runs alone"

    def compared(run):
        return [{part: value for part, value in parts.items() if part != "said"} for parts in run[:count]]

    def again():
        return map(compared, soak_rounding.rounded(lambda: plainly(source)))

    place = soak_rounding.beyond_rounding(compared(expected), compared(got), again, tol=1e-3)
    if place is not None:
        number, part, different = place
        return f"call {number}, {part}: {different}\nplain    {expected[number][part]}\ncompiled {got[number][part]}"
    return mistake


def is_left(before, after):
    """Whether a call is one that is known to differ, after which the others say nothing: a view that eager forbids to
    use, a graph that was freed and can be gone through again, or was freed as one; a second derivative by what was
    changed since."""
    forbidden = "is forbidden" in str(before.get("raised")) or "is forbidden" in str(before.get("state"))
    endings = before.get("backward"), after.get("backward")
    refused = endings == ("ended", "RuntimeError") and any(said in after["said"] for said in SAID)
    return forbidden or refused or endings == ("RuntimeError", "ended")
