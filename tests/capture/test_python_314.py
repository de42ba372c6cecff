"""What CPython 3.14 brought: template strings, ``except`` without parentheses, annotations that are evaluated when they
are read, blocks of ``with`` and calls in new instructions. Its own syntax is compiled from text."""

import opcode
import sys
import textwrap

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways
from bothways.capture.bytecode import opcodes
from bothways.capture.bytecode.opcodes import py314
from bothways.capture.bytecode.opcodes.common import BINARY_SYMBOLS

needs_314 = pytest.mark.skipif(sys.version_info < (3, 14), reason="new in Python 3.14")


def from_text(text, **names):
    """The function ``program`` of a source that older versions cannot read."""
    space = {"torch": torch, "__name__": __name__, **names}
    with pytest.warns(SyntaxWarning) if "finally" in text else _nothing():
        code = compile(textwrap.dedent(text), "<python 3.14>", "exec")
    exec(code, space)
    return space["program"]


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def result(function, call):
    """What a call gives or raises."""
    try:
        return {"result": function(*call)}
    except Exception as error:
        return {"raised": type(error), "text": str(error)}


X, Y = (torch.ones(2),), (torch.full((2,), -3.0),)


# Template strings.

TEMPLATE = '''
def program(x, name):
    y = x + 1
    made = t"of {name!r:>{len(name)}} and {y} {name}{name!s}"
    return y * 2, made
'''


def shown(function, call):
    y, made = function(*call)
    fields = [(field.value, field.expression, field.conversion, field.format_spec) for field in made.interpolations]
    return {"result": y, "strings": made.strings, "fields": fields, "type": type(made)}


@needs_314
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_template_string_is_made_by_plain_python(backend):
    call, other = (torch.ones(2), "first"), (torch.ones(2), "another")
    compiled = agree(from_text(TEMPLATE), shown, call, call, other, backend=backend)
    before = len(bothways.history(compiled))
    compiled(*call)
    assert len(bothways.history(compiled)) == before


@needs_314
def test_a_template_string_in_one_graph_says_why_not():
    with pytest.raises(bothways.errors.Unsupported, match="template string"):
        bothways.compile(from_text(TEMPLATE), fullgraph=True)(torch.ones(2), "name")


@needs_314
def test_an_empty_template_string():
    program = from_text('def program(x):\n    return x + 1, t"", t"text", t"{1}"')

    def observe(function, call):
        y, *made = function(*call)
        return {"result": y, "made": [(each.strings, each.values) for each in made]}

    agree(program, observe, X, X)


# Exceptions.


@needs_314
@pytest.mark.parametrize("backend", BACKENDS)
def test_several_exceptions_without_parentheses(backend):
    program = from_text("""
        def program(x, fails):
            try:
                if fails:
                    raise KeyError(fails)
                x = x + 1
            except ValueError, KeyError:
                x = x * 2
            return x - 1
    """)
    calls = [(torch.ones(2), fails) for fails in (0, 0, 1, 1)]
    agree(program, result, *calls, backend=backend, fullgraph=True, programs=2)


@needs_314
@pytest.mark.parametrize("backend", BACKENDS)
def test_return_in_finally_forgets_the_exception(backend):
    """The compiler warns about it, and it means what it always did."""
    program = from_text("""
        def program(x, fails):
            for turn in range(3):
                try:
                    x = x + 1
                    if fails:
                        raise ValueError("forgotten")
                finally:
                    if turn < 2:
                        continue
                    return x * 2
    """)
    calls = [(torch.ones(2), fails) for fails in (False, False, True, True)]
    agree(program, result, *calls, backend=backend, fullgraph=True, programs=2)


# Annotations.


@pytest.mark.parametrize("backend", BACKENDS)
def test_annotations_of_names_that_are_not_there(backend):
    """Since 3.14 nothing evaluates them before they are asked for, and neither does ``compile``."""
    text = "def program(x: NotThere, *, n: AlsoNot = 2) -> Nothing:\n    return x * n"
    program = from_text("from __future__ import annotations\n" + text if sys.version_info < (3, 14) else text)
    compiled = agree(program, result, X, X, Y, backend=backend, fullgraph=True, programs=1)
    if sys.version_info >= (3, 14):
        with pytest.raises(NameError):
            compiled.__annotations__  # noqa: B018
        program.__globals__.update(NotThere=int, AlsoNot=str, Nothing=None)
    assert compiled.__annotations__ == program.__annotations__


def test_annotations_that_were_set():
    def program(x):
        return x + 1

    program.__annotations__ = {"x": "a tensor"}
    assert bothways.compile(program).__annotations__ == {"x": "a tensor"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_inner_function_with_annotations_leaves(backend):
    def program(x):
        scale = 2.0

        def inner(y: torch.Tensor, power: "int" = 2) -> float:
            """What it says."""
            return y**power * scale

        return inner(x), inner

    def observe(function, call):
        y, inner = function(*call)
        return {"y": y, "annotations": inner.__annotations__, "again": inner(y, 3), "doc": inner.__doc__}

    agree(program, observe, X, X, Y, backend=backend, fullgraph=True, programs=1)


@needs_314
def test_annotations_of_an_inner_function_are_evaluated_late():
    program = from_text("""
        def program(x):
            def inner(y: Later, z: type(x).__name__ = 1):
                return y + x

            return inner(x), inner
    """)

    def observe(function, call):
        program.__globals__.pop("Later", None)
        y, inner = function(*call)
        with pytest.raises(NameError):
            inner.__annotations__  # noqa: B018
        program.__globals__["Later"] = complex
        return {"y": y, "annotations": inner.__annotations__}

    agree(program, observe, X, X, fullgraph=True, programs=1)


def test_annotations_are_read_inside():
    def program(x):
        def inner(y: int, z: str = "") -> None: ...

        return x * len(inner.__annotations__), list(inner.__annotations__)

    agree(program, result, X, X, Y, fullgraph=True, programs=1)


def test_annotations_that_were_read_and_changed_leave():
    def program(x):
        def inner(y: int): ...

        inner.__annotations__["z"] = str
        return x + 1, inner, inner.__annotations__

    def observe(function, call):
        y, inner, annotations = function(*call)
        return {"y": y, "annotations": annotations, "same": inner.__annotations__ is annotations}

    agree(program, observe, X, X)


@needs_314
def test_annotations_that_cannot_be_evaluated_are_read_inside():
    program = from_text("""
        def outside(y: NotThere): ...

        def program(x):
            try:
                outside.__annotations__
            except NameError as error:
                return x + len(str(error))
    """)
    agree(program, result, X, X)


class Annotated:
    first: int
    second: "float" = 2.0


class MoreAnnotated(Annotated):
    third: str


class NotAnnotated(Annotated):
    pass


@pytest.mark.parametrize("cls", (Annotated, MoreAnnotated))
@pytest.mark.parametrize("backend", BACKENDS)
def test_annotations_of_a_class_are_read_inside(cls, backend):
    def program(x):
        return x + len(cls.__annotations__), list(cls.__annotations__), cls.__annotations__

    agree(program, result, X, X, Y, backend=backend, fullgraph=True, programs=1)


def test_annotations_of_a_class_that_change_are_noticed():
    class Changing:
        first: int

    def program(x):
        return x * len(Changing.__annotations__)

    def observe(function, call):
        Changing.__annotations__.update(dict.fromkeys(call, int))
        return {"y": function(*X)}

    def reset():
        Changing.__annotations__.clear()

    agree(program, observe, "a", "a", "abc", "abc", reset=reset, fullgraph=True, programs=2)


def test_annotations_of_a_class_without_any():
    def program(x):
        return x + len(NotAnnotated.__annotations__)

    agree(program, result, X, X)


@needs_314
def test_annotations_of_a_class_that_cannot_be_evaluated():
    program = from_text("""
        class Late:
            field: NotThere

        def program(x):
            try:
                return x, list(Late.__annotations__)
            except NameError as error:
                return x + 1, str(error)
    """)
    agree(program, result, X, X)
    program.__globals__["NotThere"] = int
    agree(program, result, X, X)


def test_functions_without_a_docstring_have_none():
    """The first constant of a function need not be its docstring."""

    def program(x):
        def inner():
            return "no docstring"

        def told():
            "a docstring"

        return x + 1, inner.__doc__, told.__doc__

    agree(program, result, X, X, fullgraph=True, programs=1)


# Instructions that changed.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (any, all, tuple, list, sum))
def test_what_takes_a_generator_at_once(kind, backend):
    def program(x, limits):
        taken = kind(len(x) > limit for limit in limits)
        return x + 1 if taken else x - 1

    calls = [(torch.ones(2), limits) for limits in ((0, 1), (0, 1), (0, 5), (5, 5), ())]
    agree(program, result, *calls, backend=backend, fullgraph=True)


@pytest.mark.parametrize("kind", (any, all))
def test_what_looks_at_tensors_one_by_one(kind):
    def program(x, limits):
        seen = []
        taken = kind(x.sum() > (seen.append(limit) or limit) for limit in limits)
        return (x + 1 if taken else x - 1), seen

    calls = [(x, limits) for x in (*X, *Y) for limits in ((0.0, 1.0, 7.0), (0.0, 1.0, 7.0), (9.0, 8.0))]
    agree(program, result, *calls)


def test_another_any_is_called():
    space = {"any": lambda values: [len(list(values))]}
    exec("def program(x):\n    return x + 1, any(v for v in (1, 2, 3))", space)
    agree(space["program"], result, X, X, fullgraph=True, programs=1)


class Manager:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return 2

    def __exit__(self, kind, error, traceback):
        self.log.append(kind)
        return self.swallows


class NoExit:
    def __enter__(self): ...


class NoEnter:
    def __exit__(self, *_): ...


class Asynchronous:
    async def __aenter__(self): ...
    async def __aexit__(self, *_): ...


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("swallows", (True, False))
@pytest.mark.parametrize("fails", (True, False))
@pytest.mark.parametrize("breaks", (True, False))
def test_with_blocks(breaks, fails, swallows, backend):
    def program(x, log):
        with Manager(log, swallows) as factor, Manager(log):
            x = x * factor
            if breaks:
                print(end="")
            if fails:
                raise ValueError(len(log))
            x = x + 1
        return x, log

    def observe(function, call):
        return {**result(function, call), "log": call[1]}

    agree(program, lambda function, x: observe(function, (x, [])), *X, *X, *Y, backend=backend)


@pytest.mark.parametrize("kind", (NoExit, NoEnter, Asynchronous, object))
@pytest.mark.parametrize("breaks", (True, False))
def test_what_is_no_context_manager(kind, breaks):
    made = kind()

    def program(x):
        x = x + 1
        with made if breaks else kind():
            return x

    agree(program, result, X, X)


@pytest.mark.parametrize(
    "values",
    ([1, 2, 3], (1, 2, 3), {1: 2, 3: 4, 5: 6}, {1, 2, 3}, range(3), "abc", [1], (), iter([1, 2, 3])),
    ids=lambda values: f"{type(values).__name__} {repr(values) if hasattr(values, '__len__') else ''}",
)
def test_what_does_not_fit_when_it_is_unpacked(values):
    def program(x, values):
        first, second = values
        return x + first

    def observe(function, x):
        return result(function, (x, iter([1, 2, 3]) if hasattr(values, "__next__") else values))

    agree(program, observe, *X, *X)


def test_small_numbers_and_slices_are_constants():
    def program(x):
        y = x[0:1] + x[-1:] + [0, 255, 256, 70000][1]
        y[0:1] = 3
        return y, slice(1, 2), (1, 300)[0]

    agree(program, result, X, X, Y, fullgraph=True, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unpacked_arguments_at_a_break(backend):
    def program(x, args, named):
        print(*args, end="")
        print(*args, **named)
        return x + len(args)

    call = (torch.ones(2), ("",), {"end": ""})
    agree(program, result, call, call, backend=backend)


@needs_314
def test_numbers_stand_for_what_python_says():
    assert list(py314.COMMON_CONSTANTS) == opcode._common_constants
    assert list(py314.SPECIAL) == opcode._special_method_names
    assert [symbol for _, symbol in opcode._nb_ops] == BINARY_SYMBOLS


# Which Pythons.


def test_the_free_threaded_build_is_refused(monkeypatch):
    monkeypatch.setattr(opcodes.sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else None)
    with pytest.raises(RuntimeError, match="free-threaded build is not supported"):
        bothways.compile(lambda x: x)
    assert "free-threaded" in str(bothways.doctor())


def test_a_python_to_come_is_refused(monkeypatch):
    monkeypatch.setattr(opcodes, "VERSIONS", {(3, 1): "py31", (3, 2): "py32"})
    with pytest.raises(RuntimeError, match=r"use CPython 3\.1 to 3\.2: the bytecode of others is not known"):
        bothways.compile(lambda x: x)
