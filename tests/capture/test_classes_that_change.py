"""A user's class may get a descriptor, or methods of attributes, between two calls: what instances have comes after."""

import pytest
import torch
from agreeing import BACKENDS, agree

LOG = []
NOTHING = object()


def counted():
    return property(lambda self: 42, lambda self, value: LOG.append(value))


def setting(self, name, value):
    object.__setattr__(self, name, value * 10)


def asking(self, name):
    value = object.__getattribute__(self, name)
    return value + 100 if name == "n" else value


CHANGES = {
    "a property with a setter": ("n", counted),
    "__setattr__": ("__setattr__", lambda: setting),
    "__getattribute__": ("__getattribute__", lambda: asking),
    "__delattr__": ("__delattr__", lambda: lambda self, name: LOG.append(name)),
}


def two_classes():
    class Base:
        def __init__(self):
            self.n = 1

        def scaled(self, t):
            return t * self.n

    class Child(Base):
        pass

    return Base, Child


@pytest.mark.parametrize("place", [0, 1], ids=["in the base", "in the class"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_class_says_about_the_attributes_of_its_instances(change, place, backend):
    classes, thing = [], []

    def start():
        LOG.clear()
        classes[:] = two_classes()
        thing[:] = [classes[1]()]

    def program(x):
        thing[0].n += 1
        thing[0].extra = 1
        del thing[0].extra
        return thing[0].scaled(x)

    def observe(function, call):
        name, make = CHANGES[change]
        if call == "changed":
            setattr(classes[place], name, make())
        elif call == "back":
            delattr(classes[place], name)
        return {"result": function(torch.ones(2)), "held": dict(vars(thing[0])), "log": list(LOG)}

    agree(program, observe, "plain", "again", "changed", "again", "back", "again", backend=backend, reset=start)


def test_a_class_that_stays_is_one_program():
    _, child = two_classes()

    def program(x, thing):
        thing.n += 1
        return thing.scaled(x)

    def observe(function, call):
        return {"result": function(torch.ones(2), call)}

    one, other = child(), child()
    agree(program, observe, one, one, other, other, reset=lambda: (vars(one).update(n=1), vars(other).update(n=1)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_whose_class_gets_a_descriptor_or_another_call(backend):
    changes = {"weight": property(lambda self: torch.zeros(2)), "__call__": lambda self, x: x + 7}
    layer = Layer()

    def observe(function, call):
        for name in changes:
            if name in vars(Layer):
                delattr(Layer, name)
        if call in changes:
            setattr(Layer, call, changes[call])
        return {"result": function(torch.ones(2))}

    try:
        agree(
            lambda x: layer(x) * 2, observe, "", "", "weight", "weight", "", "__call__", "__call__", "", backend=backend
        )
    finally:
        observe(layer, "")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_class_says_is_read_beside_an_instance_that_hides_it(backend):
    class Hidden:
        n = 1

    thing = Hidden()

    def observe(function, call):
        Hidden.n = call
        vars(thing)["n"] = 5
        return {"result": function(torch.ones(2))}

    calls = (1, 1, property(lambda self: 3), 1)
    agree(lambda x: x * thing.n, observe, *calls, backend=backend)
