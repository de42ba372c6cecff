"""What exceptions have beside their arguments: the name that is missing and where, what ``return`` gave, a text."""

import types

import pytest
import torch
from agreeing import BACKENDS, agree

FIELDS = ("args", "name", "obj", "value", "code", "msg", "path", "object", "start", "end", "reason", "encoding")


class Thing:
    @property
    def own(self):
        raise AttributeError("said by the property")

    @property
    def inner(self):
        return self.nothing

    def __getattr__(self, name):
        if name == "asked":
            raise AttributeError(name)
        raise AttributeError(f"no {name}")


class Plain:
    __slots__ = ("a",)


THING, PLAIN, LAYER = Thing(), Plain(), torch.nn.Linear(2, 2)
MISSING = [
    "THING.own",
    "THING.inner",
    "THING.asked",
    "PLAIN.a",
    "PLAIN.b",
    "del PLAIN.a",
    "del PLAIN.b",
    "PLAIN.b = 1",
    "Plain.b",
    "types.nothing",
    "torch.nothing",
    "LAYER.nothing",
    "x.nothing",
    "[].nothing",
    "(1).nothing",
    "len.nothing",
    "x.shape.nothing",
    "torch.float32.nothing",
    "getattr(PLAIN, 'z')",
    "nothing",
    "(lambda: nothing)()",
    "from types import nothing",
    "next(iter([]))",
    "b'\\xff'.decode()",
    "'\\u20ac'.encode('ascii')",
    "super(Plain, PLAIN).z",
    "THING.own.more",
    "raise AttributeError('late')",
]


def shown(error, x):
    told = {name: getattr(error, name, "-") for name in FIELDS}
    told["obj"] = type(told["obj"]).__name__ if told["obj"] is not x else "the tensor"
    return type(error).__name__, str(error), told


def function_of(statement):
    space = dict(globals())
    body = f"try:\n        {statement}\n    except Exception as error:\n        return y, error\n"
    exec(f"def program(x):\n    y = x + 1\n    {body}", space)
    return space["program"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("statement", MISSING)
def test_what_python_notes_on_an_exception_that_is_handled(statement, backend):
    def observe(function, x):
        result, error = function(x)
        return {"result": result, "error": shown(error, x)}

    x = torch.ones(2)
    agree(function_of(statement), observe, x, x, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fields_are_read_inside(backend):
    def program(x):
        try:
            PLAIN.a  # noqa: B018
        except AttributeError as error:
            x = x * 2 if error.name == "a" and error.obj is PLAIN else x * 3
        try:
            undefined  # noqa: B018, F821
        except NameError as error:
            x = x + len(error.name)
        return x

    agree(program, lambda function, x: {"result": function(x)}, torch.ones(2), torch.ones(2), backend=backend)


class Stops(StopIteration):
    pass


class Silent(SystemExit):
    def __init__(self, code):
        self.mine = code


class Imports(ImportError):
    def __init__(self, name):
        super().__init__(f"no {name}")


MADE = [
    lambda: StopIteration(3),
    lambda: StopIteration(),
    lambda: SystemExit(2),
    lambda: SystemExit(1, 2),
    lambda: SystemExit(),
    lambda: ImportError("text"),
    lambda: ImportError(),
    lambda: ModuleNotFoundError("text"),
    lambda: SyntaxError("text"),
    lambda: Stops(4),
    lambda: Silent(5),
    lambda: Imports("this"),
    lambda: NameError("n"),
    lambda: AttributeError("a"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(len(MADE)))
def test_what_an_exception_makes_of_its_arguments(number, backend):
    make = MADE[number]

    def program(x):
        error = make()
        return x + 1, error

    def observe(function, x):
        result, error = function(x)
        return {"result": result, "error": shown(error, x)}

    agree(program, observe, torch.ones(2), torch.ones(2), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_module_does_not_have_cannot_be_imported(backend):
    def program(x):
        try:
            from types import nothing_of_this_name
        except ImportError as error:
            return x + 1, error.name
        return x - 1, nothing_of_this_name

    agree(program, lambda function, x: {"result": function(x)}, torch.ones(2), torch.ones(2), backend=backend)


def test_a_name_is_imported_from_a_module_that_has_it():
    def program(x):
        from types import SimpleNamespace

        return x + 1, SimpleNamespace

    def observe(function, x):
        result, kind = function(x)
        return {"result": result, "kind": kind is types.SimpleNamespace}

    agree(program, observe, torch.ones(2), torch.ones(2), programs=1)
