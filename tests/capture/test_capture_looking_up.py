"""What code asks of Python itself: addresses, subclasses, modules that are loaded, records that are dictionaries."""

import collections.abc
import inspect
import json
import os
import sys
import types
import typing
import weakref

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import same

X = torch.arange(3.0)


def results_agree(function, *args, programs=1):
    return agree(
        function, lambda run, args: {"result": run(*args)}, args, args, programs=programs, fullgraph=True
    )


class Options(typing.TypedDict):
    scale: int
    data: torch.Tensor


class Scaled(typing.Protocol):
    def scaled(self, x: torch.Tensor) -> torch.Tensor: ...


class Times(Scaled):
    def __init__(self, factor):
        self.factor = factor

    def scaled(self, x):
        return x * self.factor


def test_a_typed_dictionary_is_a_dictionary():
    def function(x):
        options = Options(scale=3, data=x)
        result = x * options["data"]
        options["data"] = options["scale"]
        return result * options["data"], options

    assert type(results_agree(function, X)(X)[1]) is dict


def test_a_class_that_follows_a_protocol_is_made():
    results_agree(lambda x: Times(2).scaled(x), X)


def test_structured_results_are_made_and_taken_apart_by_name():
    def function(x):
        made = torch.return_types.max((x, x + 1))
        return made, made.values, made.indices, tuple(torch.return_types.sort((2 * x, x - 1)))

    assert type(results_agree(function, X)(X)[0]) is torch.return_types.max
    with pytest.raises(TypeError):
        bothways.compile(lambda x: torch.return_types.max((x,)), backend="eager")(X)


def test_an_address_belongs_to_the_very_object():
    def function(x, address):
        return x + 1 if id(x) == address else x - 1

    compiled = results_agree(function, X, id(X))
    other = X.clone()
    assert same(compiled(other, id(X)), X - 1) and same(compiled(X, id(X)), X + 1)


def test_the_address_of_what_was_made_inside_breaks():
    with pytest.raises(bothways.errors.Unsupported, match="call_unknown"):
        bothways.compile(lambda x: id(x + 1), backend="eager", fullgraph=True)(X)


def test_subclasses_are_those_of_now():
    class Base:
        pass

    class First(Base):
        pass

    def function(x):
        return x + len(Base.__subclasses__()), [cls.__name__ for cls in Base.__subclasses__()]

    compiled = results_agree(function, X)

    class Second(Base):
        pass

    assert same(compiled(X), function(X)) and compiled(X)[1] == ["First", "Second"]
    assert (First, Second) == tuple(Base.__subclasses__())


def test_weak_references_made_inside():
    def function(x, y):
        reference = weakref.ref(x)
        return reference() * y, reference

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        result, reference = compiled(X, X + 1)
        assert same(result, X * (X + 1)) and reference() is X
    with pytest.raises(bothways.errors.Unsupported, match="object_unknown"):
        bothways.compile(lambda x: weakref.ref(x + 1)() is None, backend="eager", fullgraph=True)(X)


def test_modules_that_are_loaded_are_imported_inside():
    def function(x):
        import collections.abc as classes
        from json import decoder
        from os import path

        return x + 1, path.join("a", "b"), classes.Iterable.__name__, decoder.__name__

    results_agree(function, X)
    assert json and os and collections.abc


@pytest.fixture
def package():
    """A package with a module, as the import system leaves them."""
    names = ("some_package", "some_package.part")
    whole, part = (types.ModuleType(name) for name in names)
    whole.__path__, whole.part, part.SCALE = [], part, 3
    sys.modules.update(zip(names, (whole, part), strict=True))
    source = (
        "def function(x):\n    from . import part\n    from .part import SCALE\n    return x * part.SCALE + SCALE\n"
        "def missing(x):\n    from .other import SCALE\n    return x * SCALE\n"
    )
    scope = {"__name__": "some_package.code", "__package__": "some_package"}
    exec(compile(source, "some_package/code.py", "exec"), scope)
    yield scope
    for name in names:
        del sys.modules[name]


def test_relative_imports(package):
    results_agree(package["function"], X)
    with pytest.raises(ModuleNotFoundError):
        bothways.compile(package["missing"], backend="eager")(X)


def test_paths_that_are_texts():
    results_agree(lambda x: (x + 1, os.fspath(".")), X)


KINDS = (
    inspect.isfunction, inspect.ismethod, inspect.isclass, inspect.isbuiltin, inspect.isroutine, inspect.ismodule,
    inspect.isgenerator, inspect.iscode, callable,
)  # fmt: skip


@pytest.mark.parametrize("of_kind", KINDS, ids=lambda one: one.__name__)
def test_of_which_kind_an_object_is(of_kind):
    def default(value, other):
        if value is not None:
            return value
        return other() if of_kind(other) and of_kind is inspect.isfunction else other

    def function(x, times):
        asked = [of_kind(x), of_kind(times), of_kind(times.scaled), of_kind(Times), of_kind(len), of_kind(torch)]
        asked += [of_kind(default), of_kind(lambda: 1), of_kind(X.add), of_kind([].append), of_kind("text"), of_kind(1)]
        asked += [of_kind(torch.relu), of_kind(Times.scaled), of_kind(torch.Tensor), of_kind(None), of_kind(str.upper)]
        given = default(None, lambda: x * 2)
        return asked, default(x, 1) + (given() if callable(given) else given)

    results_agree(function, X, Times(2))
