"""Runs many functions through the native backend at once and compares each with eager.

A ``Case`` is a function on some inputs with its gradients, traced to a graph of ATen operations. The graphs of many
cases become one, so that the C compiler is called once for all of them. Results may differ from eager's as far as
eager's differ from those in double precision.
"""

import warnings
from dataclasses import dataclass, field
from itertools import islice

import torch
import torch.fx
from seeding import seeded

from bothways.backends.native import compile_kernels
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.traced import IndependentResults, NotDifferentiable
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir import lowerings
from bothways.lower.ir.prims import Extern
from bothways.lower.schedule.steps import lower
from bothways.torch_compat import tree_flatten, tree_unflatten

LOWERED = lowerings.LOWERINGS


@dataclass
class Case:
    """A function of tensors, on these inputs; ``tangents`` are the gradients its results receive."""

    name: str
    function: object
    inputs: list
    graph: torch.fx.GraphModule = None
    tangents: list = field(default_factory=list)
    expected: list = None

    @property
    def given(self):
        return [*self.inputs, *self.tangents]


def with_tensors_first(function, args, kwargs=None):
    """A function of the tensors among the arguments that returns a list of tensors, and those tensors."""
    leaves, structure = tree_flatten((args, kwargs or {}))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        own_args, own_kwargs = tree_unflatten(filled, structure)
        result = function(*own_args, **own_kwargs)
        return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]

    return call, [leaves[place] for place in places]


def cases_of(name, function, inputs, grad=True):
    """The cases of a function: one, unless its results have nothing to do with each other."""
    grad = grad and any(tensor.requires_grad for tensor in inputs)
    try:
        joint = trace_joint(function, inputs, grad)
    except IndependentResults as found:
        parts = [lambda *values, group=group: [function(*values)[at] for at in group] for group in found.groups]
        return [case for part in parts for case in cases_of(name, part, inputs, grad)]
    case = Case(name, function, [duplicate(tensor).requires_grad_(tensor.requires_grad) for tensor in inputs])
    gradients = [node for node in joint.gradients if node is not None]
    outputs = [*joint.results, *joint.updates.values(), *gradients]
    case.graph = joint.recorder.module(tuple(outputs), "Case")
    case.graph.graph.eliminate_dead_code()
    generator = seeded(0)
    for node in joint.tangents:
        fake = node.meta["val"]
        values = torch.rand(fake.shape, generator=generator, dtype=torch.float64) + 0.5
        tangent = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
        case.tangents.append(tangent.copy_(values))
    case.expected = run_graph(case.graph, case.given)
    return [case]


def duplicate(tensor):
    """The same elements in memory of their own, at the same places."""
    memory = tensor.detach().untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())


def run_graph(graph, inputs):
    """What ATen computes: the results, and the inputs as they are afterwards, where it changes them."""
    torch.manual_seed(0)
    given = [duplicate(tensor) for tensor in inputs]
    with torch.no_grad():
        return [*graph(*given), *given]


def is_random(case):
    """Whether a case draws random numbers: built with others, it would draw others."""
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in case.graph.graph.nodes)


def reference(case):
    """What ATen computes in double precision; None where that is not possible."""
    if not any(tensor.dtype.is_floating_point for tensor in case.inputs):
        return None
    inputs = [wider(tensor) for tensor in case.inputs]
    try:
        [other] = cases_of(case.name, case.function, inputs)
        if len(other.expected) != len(case.expected):
            return None
        return run_graph(other.graph, [*inputs, *map(wider, case.tangents)])
    except (RuntimeError, ValueError, TypeError, NotDifferentiable):
        return None


def wider(tensor):
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


# All at once -----------------------------------------------------------------------------------------------------


def merged(cases):
    """One graph that does what all cases do."""
    graph, root, outputs = torch.fx.Graph(), torch.nn.Module(), []
    for number, case in enumerate(cases):
        values = {}
        for node in case.graph.graph.nodes:
            if node.op == "output":
                outputs += [values.get(value) for value in node.args[0]]
                continue
            copied = values[node] = graph.node_copy(node, values.__getitem__)
            if node.op in ("get_attr", "placeholder"):
                copied.target = f"case_{number}_{node.target}"
            if node.op == "get_attr":
                setattr(root, copied.target, getattr(case.graph, node.target))
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(root, graph)


@dataclass
class Outcome:
    """A case, and what differs from eager."""

    case: Case
    wrong: list = field(default_factory=list)


def run_cases(cases):
    """The outcomes of cases: those that can be are built together."""
    together = [case for case in cases if not is_random(case)]
    alone = [[case] for case in cases if is_random(case)]
    return [outcome for some in [together, *alone] if some for outcome in run_some(some)]


def run_some(cases):
    """One that breaks the build is found by halving."""
    try:
        results = run_merged(cases)
    except Exception as error:
        if len(cases) == 1:
            return [Outcome(cases[0], [f"{type(error).__name__}: {str(error)[:300]}"])]
        half = len(cases) // 2
        return [*run_some(cases[:half]), *run_some(cases[half:])]
    return [Outcome(case, differences(case, own)) for case, own in zip(cases, results, strict=True)]


def run_merged(cases, dialect=None):
    """The results of each case, and its inputs afterwards."""
    inputs = [duplicate(tensor) for case in cases for tensor in case.given]
    if any(tensor.is_cuda for tensor in inputs):  # as the backend does it, kernels or not
        run = compile_kernels(merged(cases), inputs, name="forward", takes_list=False)
    else:
        run = KernelProgram(lower(merged(cases), inputs), dialect=dialect or C()).run
    torch.manual_seed(0)
    with torch.no_grad():
        results = iter(run(*inputs))
    after = iter(inputs)
    counts = [(len(case.expected) - len(case.given), len(case.given)) for case in cases]
    return [[*islice(results, made), *islice(after, given)] for made, given in counts]


def unlowered(case):
    """The ATen operations of a case that ATen runs."""
    lowered = lower(case.graph, [tensor.detach() for tensor in case.given])
    return [step.target for step in lowered.steps if isinstance(step, Extern) and not step.only_computes]


# Comparing -------------------------------------------------------------------------------------------------------


def differences(case, got):
    """What is wrong with the results of a case."""
    found, exact = [], None
    for index, (own, eager) in enumerate(zip(got, case.expected, strict=True)):
        if own is None or eager is None:
            if own is not eager:
                found.append(f"result {index} is {own}, not {eager}")
            continue
        facts = [(tensor.shape, tensor.dtype, strides_that_count(tensor)) for tensor in (own, eager)]
        # PyTorch foretells strides and dtypes of a few operations wrongly; then it is what was foretold that counts.
        if facts[0] != facts[1] and (*facts[0][:2], own.stride()) != foretold(case, index):
            found.append(f"result {index} is {facts[0]}, not {facts[1]}")
            continue
        own = own.to(eager.dtype)
        if same(own, eager):
            continue
        if exact is None:
            exact = reference(case) or [None] * len(got)
        true = exact[index]
        if true is None or not eager.dtype.is_floating_point or not as_accurate(own, eager, true):
            found.append(f"result {index} of {operations(case)}:\n{describe(case, own, eager, true)}")
    return found


def foretold(case, index):
    [output] = [node for node in case.graph.graph.nodes if node.op == "output"]
    fakes = [node.meta["val"] for node in output.args[0] if node is not None]
    return (fakes[index].shape, fakes[index].dtype, fakes[index].stride()) if index < len(fakes) else None


def strides_that_count(tensor):
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def same(own, eager):
    """Equal, or as close as PyTorch's own tests want it."""
    try:
        torch.testing.assert_close(own, eager, equal_nan=True)
    except AssertionError:
        return False
    return True


def as_accurate(own, eager, true):
    """Whether a result is as near to the true one as eager's, give or take a few units in the last place."""
    unit = torch.finfo(eager.dtype).eps
    own, eager = own.double(), eager.double()
    equal = (own == eager) | (own.isnan() & eager.isnan())
    of_own, of_eager = (own - true).abs(), (eager - true).abs()
    comparable = of_eager.isfinite()  # not where eager overflows, or there is no true result
    worst = of_eager[comparable].max() if comparable.any() else 0
    few_units = 16 * unit * true.abs()
    allowed = torch.where(comparable, 4 * of_eager + few_units + 2 * worst, few_units)
    return bool((equal | (of_own <= allowed)).all())


def operations(case):
    return " ".join(str(node.target) for node in case.graph.graph.nodes if node.op == "call_function")


def describe(case, own, eager, true):
    """Some of the elements that differ, with the elements of inputs of that shape they come from."""
    differ = ~((own == eager) | ((own != own) & (eager != eager))).flatten()
    named = {"own": own, "eager": eager, "true": true}
    named |= {f"input {at}": tensor for at, tensor in enumerate(case.given) if tensor.shape == own.shape}
    return "\n".join(
        f"{name} {tensor.detach().cpu().flatten()[differ.cpu()][:8].tolist()}"
        for name, tensor in named.items()
        if tensor is not None
    )


def without_warnings(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)
