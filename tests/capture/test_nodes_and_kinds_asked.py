"""What a function asks of autograd's nodes and of tensors of inference mode is what eager says, compiled or not: a
graph whose nodes are looked at runs as captured; where the kind of a tensor is in doubt, the tensor itself is asked."""

import pytest
import torch
from agreeing import agree
from seeding import seeded

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


def _square(seed):
    return torch.randn(3, 3, generator=seeded(seed)).requires_grad_()


def two_names(x, w):
    h = x @ w
    y = h.relu()
    return h.grad_fn.name(), y.grad_fn.name()


def a_name_and_the_one_before(x, w):
    y = (x @ w).relu()
    return y.grad_fn.name(), y.grad_fn.next_functions[0][0].name()


def kinds_of_those_before(x, w):
    y = (x @ w).relu()
    return y.grad_fn.name(), [type(node).__name__ for node, _ in y.grad_fn.next_functions]


def behind_two_others(x, w):
    y = (x @ w).relu()
    z = y.sin() * y
    return z.grad_fn.name(), z.grad_fn.next_functions[0][0].name()


def _name_of(tensor):
    return tensor.grad_fn.name()


def by_a_function(x, w):
    h = (x @ w).relu()
    return _name_of(h), _name_of(h.sin())


NAMES = [two_names, a_name_and_the_one_before, kinds_of_those_before, behind_two_others, by_a_function]


@pytest.mark.parametrize("program", NAMES)
def test_nodes_have_their_names(backend, program):
    def observe(function, call):
        return {"names": function(_square(1), _square(2))}

    agree(program, observe, 1, 2, backend=backend)


def test_who_gets_a_node_finds_all_before_it(backend):
    def program(x, w):
        return (x @ w).relu().sin().grad_fn

    def observe(function, call):
        node, names = function(_square(1), _square(2)), []
        while node is not None:
            names.append(node.name())
            node = node.next_functions[0][0] if node.next_functions else None
        return {"names": names}

    agree(program, observe, 1, 2, backend=backend)


def asked_outside(x):
    with torch.inference_mode():
        made = x * 5
    return made.is_inference(), torch.is_inference(made), (x * 2).is_inference(), x.is_inference()


def views(x):
    with torch.inference_mode():
        made, view = x * 5, x.view(-1)
        inside = made.is_inference(), view.is_inference()
    return inside, made.view(-1).is_inference(), view.is_inference(), (made + 1).is_inference()


def mode_left_inside(x):
    with torch.inference_mode(False):
        made = x * 2
    return made.is_inference(), x.view(-1).is_inference(), (x * 2).is_inference(), x.detach().is_inference()


def nothing_entered(x):
    return (x * 2).is_inference(), x.view(-1).is_inference(), x.t().is_inference()


@pytest.mark.parametrize("program", [asked_outside, views, mode_left_inside, nothing_entered])
def test_tensors_of_inference_mode_say_so(backend, program):
    def observe(function, call):
        made_in, called_in = call
        with torch.inference_mode(made_in):
            x = torch.ones(2, 2)
        with torch.inference_mode(called_in):
            return {"kinds": function(x)}

    calls = [(made, called) for made in (False, True) for called in (False, True)]
    agree(program, observe, *calls, *calls, backend=backend)
