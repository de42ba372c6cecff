"""Runs a generated flat program plainly and compiled, and tells the first thing that differs.

Beside what a call returns, raises, prints and changes, its snapshot has what tensors are: strides, which share memory,
whether they are leaves, conjugated or of inference mode; the types of numbers and the signs of zeros; slots, maps in
chains, the sizes that deques may have; and what a backward through the results leaves in all of it.
"""

import contextlib
import io
import math
import random
import re
import types
import warnings
from collections import ChainMap, defaultdict, deque
from enum import Enum

import soak_checking
import soak_rounding
import soak_ways
import torch

import bothways

PLAIN = (type(None), bool, int, str, bytes, complex, range, slice, torch.dtype, torch.device, torch.Size, Enum)
NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.GeneratorType)
# What a module of PyTorch's has for itself.
OF_MODULES = frozenset(vars(torch.nn.Module())) - {"_parameters", "_buffers", "_modules", "training"}


class Snapshot:
    """Values as they are now, as nested tuples; an object, or a memory, that was seen before is a number."""

    def __init__(self):
        self.seen, self.kept, self.memories = {}, [], {}

    def __call__(self, value):
        if isinstance(value, float) and type(value) is float:
            return ("float", value, math.copysign(1.0, value) if value == 0 else 0)
        if isinstance(value, PLAIN):
            return (type(value).__name__, value if type(value) in PLAIN else str(value))
        if isinstance(value, NAMED):
            return ("named", value.__name__)
        if not isinstance(value, tuple):  # equal tuples may be one or two
            if id(value) in self.seen:
                return ("again", self.seen[id(value)])
            self.seen[id(value)] = len(self.seen)
            self.kept.append(value)
        return next(row for kind, row in KINDS if isinstance(value, kind))(self, value)

    def tensor(self, value):
        pointer = value.untyped_storage().data_ptr() if value.numel() else 0
        memory = self.memories.setdefault(pointer, len(self.memories)) if pointer else None
        steps = [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1] * bool(value.numel())
        is_leaf = soak_checking.asked(lambda: value.is_leaf)
        kinds = (value.is_inference(), value.is_conj(), value.is_neg(), value.requires_grad, is_leaf)
        grad = soak_checking.asked(lambda: self(value.grad if is_leaf is True or value.retains_grad else None))
        copied = value.detach().clone().as_subclass(torch.Tensor)
        return ("tensor", type(value).__name__, copied, steps, memory, kinds, grad, self.rest(value))

    def items(self, value):
        extra = value.maxlen if isinstance(value, deque) else None
        return (type(value).__name__, [self(item) for item in value], extra, self.rest(value))

    def mapping(self, value):
        extra = value.maps if isinstance(value, ChainMap) else getattr(value, "default_factory", None)
        pairs = [(self(key), self(item)) for key, item in value.items()]
        return (type(value).__name__, pairs, self(extra), self.rest(value))

    def names(self, value):
        return (type(value).__name__, sorted(map(repr, value)))

    def module(self, value):
        shown = {name: part for name, part in vars(value).items() if name not in OF_MODULES}
        return (type(value).__name__, [(name, self(part)) for name, part in shown.items()])

    def error(self, value):
        grouped = [self(inner) for inner in getattr(value, "exceptions", ())]
        return (soak_checking.raised(value), getattr(value, "__notes__", None), grouped)

    def anything(self, value):
        slots = [name for kind in type(value).__mro__ for name in slots_of(kind) if hasattr(value, name)]
        return (type(value).__name__, [(name, self(getattr(value, name))) for name in slots], self.rest(value))

    def rest(self, value):
        """What an object has in its dictionary."""
        held = getattr(value, "__dict__", None)
        return [(name, self(part)) for name, part in held.items()] if held and isinstance(held, dict) else None


KINDS = (
    (torch.Tensor, Snapshot.tensor), (torch.nn.Module, Snapshot.module), ((set, frozenset), Snapshot.names),
    ((list, tuple, deque), Snapshot.items), ((dict, ChainMap, defaultdict, types.MappingProxyType), Snapshot.mapping),
    (BaseException, Snapshot.error), (object, Snapshot.anything),
)  # fmt: skip


def slots_of(kind):
    slots = vars(kind).get("__slots__", ())
    return [name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__")]


def tensors_in(value, found):
    """The tensors in what was returned that lead back to something, each once."""
    if isinstance(value, torch.Tensor):
        leads = value.requires_grad and soak_checking.asked(lambda: value.grad_fn) is not None
        return [*found, value] if leads and all(value is not one for one in found) else found
    for item in value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else ():
        found = tensors_in(item, found)
    return found


def backward(result):
    """How a backward through the results ends; each is weighted in its own way."""
    total = 0
    try:
        for number, tensor in enumerate(tensors_in(result, [])):
            weights = torch.linspace(0.5, 1 + number, tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
            weighted = (tensor * weights.to(tensor.dtype)).sum()
            total = total + (weighted.abs() if weighted.is_complex() else weighted).double()
        if isinstance(total, torch.Tensor):
            total.backward()
    except RuntimeError as error:  # the text may name nodes of the graph
        return type(error).__name__
    return "ended"


def call(module, function, number):
    """What one call shows."""
    torch.manual_seed(number)
    random.seed(number)
    args = module.make(number)
    error, result, printed = None, None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = function(*args)
        except Exception as caught:
            error = caught
    held = {name: getattr(module, name) for name in getattr(module, "STATE", ())}
    shown = {
        "raised": Snapshot()(error),
        "printed": printed.getvalue(),
        "settings": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype())),
        "state": Snapshot()([result, args, held]),
        "random numbers": (torch.rand(1), random.random()),
        "backward": backward(result),
    }
    # Of a backward that is refused midway, leaves have the gradients that autograd had come to.
    shown["afterwards"] = Snapshot()([result, args, held]) if shown["backward"] == "ended" else None
    torch.set_grad_enabled(True)
    return shown


def calls(module, function):
    """What every call shows, until a backward leaves gradients that are nobody's."""
    shown = []
    for number in range(len(module.GIVEN)):
        shown.append(call(module, function, number))
        if shown[-1]["afterwards"] is None:
            break
    return shown


def plainly(source):
    """What the calls of a program show when nothing is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = soak_checking.load(source, "<soak>")
        return calls(module, module.target)


NOTHING = ("NoneType", None)
_CATCHING = re.compile(r"\b(except|suppress|cm\()")


def disagreement(source, way=soak_ways.EAGER, plain=None):
    """The first thing in which the compiled program is not like the plain one; None when there is none."""
    expected = plain or plainly(source)
    module = soak_checking.load(source, "<soak>")
    try:
        with warnings.catch_warnings(), soak_ways.taken(way) as failures:
            warnings.simplefilter("ignore")
            function = bothways.compile(module.target, backend=way.backend)
            got = calls(module, function)
            catches = _CATCHING.search(source) is not None or any(shown["raised"] != NOTHING for shown in expected)
            mistake = soak_ways.mistake(function, failures, catches=catches)
    finally:
        torch.set_grad_enabled(True)
        bothways.reset()
    if len(expected) != len(got):
        return f"plain has {len(expected)} calls until a backward is refused, compiled {len(got)}"
    tolerance = getattr(module, "TOLERANCE", 1e-3)

    def again():
        return soak_rounding.rounded(lambda: plainly(source))

    place = soak_rounding.beyond_rounding(expected, got, again, tol=tolerance)
    if place is not None:
        number, part, different = place
        return f"call {number}, {part}: {different}\nplain    {expected[number][part]}\ncompiled {got[number][part]}"
    return mistake
