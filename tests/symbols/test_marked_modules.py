"""Marks on modules and on the tensors in them, where modules of one class share programs.

``mark_static`` of a class keeps what its instances hold constant: each other number has a program of its own. Marks on
a tensor that a module holds say what the same marks say of an argument.
"""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


class Scaled(torch.nn.Module):
    """Numbers where modules keep them: an attribute, a list, a dictionary, a record."""

    def __init__(self, number):
        super().__init__()
        self.number, self.numbers, self.named = number, [number, number + 1], {"a": number + 2}

    def forward(self, x):
        return x * self.number + self.numbers[1] - self.named["a"] * getattr(self, "number") / vars(self)["number"]


def static(cls):
    """A class of its own that is marked."""
    return bothways.mark_static(type("Static" + cls.__name__, (cls,), {}))


def through(module, x):
    """What a call gives, and the gradient that it leaves."""
    x = x.detach().requires_grad_()
    out = module(x)
    out.sum().backward()
    return {"out": out, "gradient": x.grad}


def over(module, x):
    return module(x)


def called(function, call):
    module, x = call
    return through(lambda x: function(module, x), x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("cls", "programs"), [(Scaled, 2), (static(Scaled), 4)], ids=["plain", "static"])
def test_each_number_of_a_static_module_has_its_program(cls, programs, backend):
    x = torch.randn(4, 4)
    calls = [(cls(number), x) for number in (10, 20, 2.5, 30)]
    if cls is Scaled:  # whole numbers, of which the second is a symbol
        calls = [calls[0], calls[1], calls[3]]
    agree(over, called, *calls, *calls, backend=backend, programs=programs, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_static_modules_that_are_compiled_one_by_one(backend):
    cls, x = static(Scaled), torch.randn(4, 4)
    modules = [cls(number) for number in (10, 20, 30, 20)]
    compiled = [bothways.compile(module, backend=backend, fullgraph=True) for module in modules]
    for _ in range(2):
        for plain, module in zip(modules, compiled, strict=True):
            expected, found = through(plain, x), through(module, x)
            assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert len(bothways.history(compiled[-1])) == 3


def test_a_number_that_changes_in_a_static_module():
    module, x = static(Scaled)(7), torch.ones(2)

    def renumbered(function, number):
        module.number = number
        return {"out": function(module, x)}

    agree(over, renumbered, 7, 8, 9, 7, 9.0, 8, programs=4, fullgraph=True)


class Inner(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        return x + self.number


class Outer(torch.nn.Module):
    def __init__(self, number, inner):
        super().__init__()
        self.number, self.inner = number, inner

    def forward(self, x):
        return self.inner(x) * self.number


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_nearest_module_decides(dynamic):
    x = torch.randn(3)

    def programs(outer, inner, numbers):
        calls = [(outer(a, inner(b)), x) for a, b in numbers]
        compiled = agree(over, called, *calls, *calls, fullgraph=True, dynamic=dynamic)
        return len(bothways.history(compiled))

    outsides, insides = [(n, 5) for n in (2, 3, 4, 6)], [(5, n) for n in (2, 3, 4, 6)]
    assert programs(static(Outer), Inner, outsides) == 4
    assert programs(static(Outer), Inner, insides) == 2
    assert programs(Outer, static(Inner), outsides) == 2
    assert programs(Outer, static(Inner), insides) == 4
    assert programs(Outer, type("Heir", (static(Inner),), {}), insides) == 4


def test_a_function_sees_modules_of_both_kinds():
    marked, x = static(Inner), torch.randn(3)
    calls = [(cls(number), x) for number in (4, 5, 6) for cls in (Inner, marked)]
    agree(over, called, *calls, *calls, programs=3 + 2, fullgraph=True)


class Table(torch.nn.Module):
    """A buffer, and a tensor that is none."""

    def __init__(self, rows, mark=None, *dims):
        super().__init__()
        self.register_buffer("rows", torch.randn(rows, 3))
        self.others = torch.randn(rows, 3)
        for tensor in (self.rows, self.others) if mark is not None else ():
            mark(tensor, *dims)

    def forward(self, x):
        return (self.rows + self.others * x).sum(0) * self.rows.shape[0]


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("cls", "marks", "programs"),
    [
        (Table, (), 2),
        (Table, (bothways.mark_dynamic, 0), 1),
        (Table, (bothways.mark_static, 0), 4),
        (Table, (bothways.mark_static,), 4),
        (static(Table), (), 4),
        (static(Table), (bothways.mark_dynamic, 0), 1),
    ],
    ids=["plain", "dynamic", "static dimension", "static", "static class", "dynamic in a static class"],
)
def test_marks_on_tensors_of_modules_that_share_programs(cls, marks, programs, backend):
    x = torch.randn(3)
    calls = [(cls(rows, *marks), x) for rows in (4, 5, 6, 7)]
    agree(over, called, *calls, *calls, backend=backend, programs=programs, fullgraph=True, tol=1e-5)


def test_a_dimension_that_is_marked_both_ways_is_dynamic():
    def sized(function, rows):
        x = torch.ones(rows, 3)
        bothways.mark_dynamic(x, 0)
        bothways.mark_static(x)
        return {"out": function(x)}

    agree(lambda x: x * x.shape[0], sized, 4, 5, 6, 4, programs=1)


def test_the_marks_of_the_drop_in():
    bothways.install()
    try:
        decorators = torch._dynamo.decorators
        marks = [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic]
        marks += [decorators.mark_dynamic, decorators.maybe_mark_dynamic, decorators.mark_unbacked]
        x = torch.randn(3)
        for mark in marks:
            calls = [(Table(rows, mark, 0), x) for rows in (4, 5, 6)]
            agree(over, called, *calls, *calls, programs=1, fullgraph=True, tol=1e-5)
        for mark in (torch._dynamo.mark_static, decorators.mark_static):
            calls = [(Table(rows, mark, 0), x) for rows in (4, 5, 6)]
            agree(over, called, *calls, *calls, programs=3, fullgraph=True, tol=1e-5)
            cls = mark(type("Marked", (Scaled,), {}))
            calls = [(cls(number), x) for number in (10, 20, 30)]
            agree(over, called, *calls, *calls, programs=3, fullgraph=True)
    finally:
        bothways.uninstall()


def test_what_cannot_be_marked():
    for other in (3, Scaled(2), int):
        with pytest.raises(bothways.errors.InvalidTarget):
            bothways.mark_static(other)
