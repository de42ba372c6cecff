"""What the tests of custom ``autograd.Function``s share: a program and its backward, run plainly and compiled."""

import enum

import torch
from agreeing import agree as compare
from seeding import seeded

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


def inputs(*shapes):
    """Tensors that need gradients, the same ones each time."""
    generator = seeded(7)
    return [torch.rand(*shape, generator=generator).add_(0.5).requires_grad_() for shape in shapes or ((2, 3),)]


def observed(function, make_args, seen):
    """What a call returns, what its backward gives the arguments, and what both do to ``seen``."""
    seen.clear()
    args = make_args()
    try:
        result = function(*args)
        outputs = [value for value in flat(result) if value.requires_grad]
        described = [(value, getattr(value, "requires_grad", None)) for value in every(result)]
        moment = list(seen)
        if outputs:
            sum((value * (index + 2)).sum() for index, value in enumerate(outputs)).backward()
    except Exception as error:
        return {"what is raised": (type(error).__name__, str(error)), "effects until then": list(seen)}
    return {
        "the type of the result": type(result).__name__,
        "results, and whether they need gradients": described,
        "effects of the forward": moment,
        "effects of both": list(seen),
        "gradients": [value.grad for value in leaves(args)],
    }


def every(result):
    """The parts of a result, containers opened."""
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in every(item)]
    return [result]


def flat(result):
    return [value for value in every(result) if isinstance(value, torch.Tensor)]


def leaves(args):
    """The tensors among arguments, those that objects hold too."""
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found += leaves(arg)
        elif isinstance(arg, dict):
            found += leaves(arg.values())
        elif hasattr(arg, "__dict__") and not isinstance(arg, enum.Enum):
            found += leaves(vars(arg).values())
    return found


def agree(program, backend, make_args=inputs, *, seen=(), fullgraph=True, captures=1):
    """Plain and compiled agree on results, gradients and effects; the second call finds the program of the first."""
    seen = seen if isinstance(seen, list) else []
    observe = lambda function, make: observed(function, make, seen)
    return compare(
        program, observe, make_args, make_args, backend=backend, programs=captures, fullgraph=fullgraph
    )


def node_of(compiled):
    """The node that stands for the one custom function of a compiled program."""
    (graph,) = bothways.explain(compiled).graphs
    return next(node.target for node in graph.graph.nodes if hasattr(node.target, "opaque"))
