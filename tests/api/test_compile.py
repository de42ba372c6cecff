"""``bothways.compile``: what may be compiled, that it stays what it was, and what a mistake says."""

import asyncio
import copy
import functools
import inspect
import pickle
import threading
import traceback
from abc import ABC, abstractmethod

import pytest
import torch
from torch import nn

import bothways
from bothways import errors
from bothways.testing import CompileCounter

X = torch.arange(4.0)


@bothways.compile
def module_level(x, scale=2):
    """Doubles."""
    return x * scale


# The forms of the decorator


def test_decorator_without_arguments():
    @bothways.compile
    def double(x):
        return x * 2

    assert torch.equal(double(X), X * 2)


def test_decorator_with_arguments():
    counter = CompileCounter()

    @bothways.compile(backend=counter, fullgraph=True)
    def double(x):
        return x * 2

    assert torch.equal(double(X), X * 2)
    assert torch.equal(double(X), X * 2)
    assert counter.frame_count == 1


def test_called_as_a_function():
    counter = CompileCounter()
    double = bothways.compile(lambda x: x * 2, backend=counter)
    assert torch.equal(double(X), X * 2)
    assert counter.frame_count == 1


def test_compiling_a_compiled_function_starts_from_its_original():
    counter = CompileCounter()
    again = bothways.compile(module_level, backend=counter)
    assert torch.equal(again(X), X * 2)
    assert counter.frame_count == 1
    assert again.__wrapped__ is module_level.__wrapped__


def test_disable_true_gives_back_the_target():
    def double(x):
        return x * 2

    assert bothways.compile(double, disable=True) is double
    module = nn.Linear(2, 2)
    assert bothways.compile(module, disable=True) is module


# What may be compiled


class Scale:
    factor = 3

    @bothways.compile
    def method(self, x):
        return x * self.factor

    @staticmethod
    @bothways.compile
    def static_below(x):
        return x + 1

    @bothways.compile
    @staticmethod
    def static_above(x):
        return x + 2

    @classmethod
    @bothways.compile
    def class_below(cls, x):
        return x * cls.factor

    @bothways.compile
    @classmethod
    def class_above(cls, x):
        return x * cls.factor + 1

    @property
    @bothways.compile
    def scaled(self):
        return X * self.factor

    @bothways.compile
    def __call__(self, x):
        return x - self.factor


def test_method():
    scale = Scale()
    assert torch.equal(scale.method(X), X * 3)
    assert torch.equal(Scale.method(scale, X), X * 3)
    scale.factor = 5
    assert torch.equal(scale.method(X), X * 5)


def test_static_method_below_and_above():
    assert torch.equal(Scale.static_below(X), X + 1)
    assert torch.equal(Scale().static_below(X), X + 1)
    assert torch.equal(Scale.static_above(X), X + 2)
    assert torch.equal(Scale().static_above(X), X + 2)


def test_class_method_below_and_above():
    class Fivefold(Scale):
        factor = 5

    assert torch.equal(Scale.class_below(X), X * 3)
    assert torch.equal(Fivefold.class_below(X), X * 5)
    assert torch.equal(Scale().class_above(X), X * 3 + 1)
    assert torch.equal(Fivefold().class_above(X), X * 5 + 1)


def test_property_and_call_operator():
    assert torch.equal(Scale().scaled, X * 3)
    assert torch.equal(Scale()(X), X - 3)


def test_bound_method():
    class Shift:
        by = 2

        def shift(self, x):
            return x + self.by

    owner = Shift()
    counter = CompileCounter()
    shift = bothways.compile(owner.shift, backend=counter)
    assert torch.equal(shift(X), X + 2)
    assert shift.__self__ is owner
    owner.by = 7
    assert torch.equal(shift(X), X + 7)
    assert counter.frame_count == 2


def test_callable_object():
    class Shift:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x + self.by

    counter = CompileCounter()
    shift = bothways.compile(Shift(2), backend=counter, fullgraph=True)
    assert torch.equal(shift(X), X + 2)
    assert torch.equal(shift(X), X + 2)
    assert counter.frame_count == 1


def test_partial():
    def scaled(x, factor, *, shift):
        return x * factor + shift

    counter = CompileCounter()
    compiled = bothways.compile(functools.partial(scaled, factor=3, shift=1), backend=counter, fullgraph=True)
    assert torch.equal(compiled(X), X * 3 + 1)
    assert torch.equal(compiled(X), X * 3 + 1)
    assert counter.frame_count == 1


@pytest.mark.parametrize("function", [torch.relu, nn.functional.relu, torch.Tensor.relu], ids=["c", "python", "method"])
def test_builtin(function):
    compiled = bothways.compile(function, fullgraph=True)
    assert torch.equal(compiled(X - 1), torch.relu(X - 1))
    assert compiled.__name__ == "relu"


# Parameters


def test_every_kind_of_parameter():
    def every_kind(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a * b + c, rest, d, e, more

    counter = CompileCounter()
    compiled = bothways.compile(every_kind, backend=counter, fullgraph=True)
    for args, kwargs in (
        ((X,), {"d": 4}),
        ((X, 7), {"d": 4, "z": 1}),
        ((X, 7, 8, 9, 10), {"e": 1, "d": 2, "y": 3, "a": 4}),
    ):
        assert repr(compiled(*args, **kwargs)) == repr(every_kind(*args, **kwargs))
        frames = counter.frame_count
        assert repr(compiled(*args, **kwargs)) == repr(every_kind(*args, **kwargs))
        assert counter.frame_count == frames


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1, 2), {"y": 2})], ids=repr
)
def test_wrong_arguments_raise_as_the_original_does(args, kwargs):
    def program(x, y=1):
        return x + y

    with pytest.raises(TypeError) as plain:
        program(*args, **kwargs)
    with pytest.raises(TypeError) as compiled:
        bothways.compile(program)(*args, **kwargs)
    assert str(compiled.value) == str(plain.value)


def test_parameters_may_have_the_names_of_builtins():
    def program(x, type, id=1, *, len, max=4, **dict):
        return x * type + id + len + max + sum(dict.values())

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    assert inspect.signature(compiled) == inspect.signature(program)
    for _ in range(2):
        assert torch.equal(compiled(X, 2, len=3, list=5), program(X, 2, len=3, list=5))
        assert torch.equal(compiled(x=X, type=2, id=9, len=3), program(x=X, type=2, id=9, len=3))
    assert counter.frame_count == 2


def test_parameters_may_have_the_names_of_generated_code():
    def program(x, type, type_, hit, _graph_1, _Tensor_1_2, _bothways_miss, _):
        return x * type + type_ * 2 + hit * 3 + _graph_1 * 5 + _Tensor_1_2 * 7 + _bothways_miss * 11 + _

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    arguments = dict(type=1, type_=2, hit=3, _graph_1=4, _Tensor_1_2=5, _bothways_miss=6, _=7)
    for _ in range(2):
        assert torch.equal(compiled(X, **arguments), program(X, **arguments))
    assert counter.frame_count == 1


def test_a_function_may_have_any_name():
    def program(x):
        return x + 1

    program.__name__ = "class"
    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X + 1)
    assert compiled.__name__ == "class"


# The face of the original


def test_name_signature_docstring_and_attributes():
    def program(x: torch.Tensor, *, shift: int = 3) -> torch.Tensor:
        """Shifts."""
        return x + shift

    program.note = "mine"
    compiled = bothways.compile(program)
    assert compiled.__name__ == program.__name__
    assert compiled.__qualname__ == program.__qualname__
    assert compiled.__module__ == program.__module__
    assert compiled.__doc__ == "Shifts."
    assert compiled.__annotations__ == program.__annotations__
    assert compiled.__kwdefaults__ == {"shift": 3}
    assert compiled.note == "mine"
    assert compiled.__wrapped__ is program
    assert inspect.signature(compiled) == inspect.signature(program)
    assert inspect.getsource(compiled) == inspect.getsource(program)
    assert inspect.isfunction(compiled)


def test_pickle_and_copies_of_a_function_are_the_function():
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy(module_level) is module_level


def test_defaults_may_be_changed_later():
    def program(x, shift=1):
        return x + shift

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X + 1)
    compiled.__defaults__ = (5,)
    assert torch.equal(compiled(X), X + 5)


# Modules: their own file shows the rest


def test_classes_that_watch_their_subclasses_do_not_see_the_compiled_one():
    seen = []

    class Watched(nn.Module, ABC):
        def __init_subclass__(cls, **kwargs):
            seen.append(cls)

        @abstractmethod
        def shift(self): ...

        def forward(self, x):
            return x + self.shift()

    class Shift(Watched):
        def shift(self):
            return 2

    compiled = bothways.compile(Shift())
    assert torch.equal(compiled(X), X + 2)
    assert isinstance(compiled, Watched)
    assert seen == [Shift]


# Mistakes


@pytest.mark.parametrize(
    ("option", "valid"),
    [
        ({"backend": "nothing"}, "eager"),
        ({"backend": 3}, "eager"),
        ({"mode": "fastest"}, "reduce-overhead"),
        ({"mode": []}, "reduce-overhead"),
        ({"options": {"unroll": 4}}, "valid options"),
        ({"options": 3}, "mapping"),
        ({"fullgraph": 1}, "True, False"),
        ({"dynamic": "yes"}, "True, False, None"),
        ({"disable": None}, "True, False"),
    ],
    ids=repr,
)
def test_a_wrong_option_raises_at_the_call_and_names_the_valid_ones(option, valid):
    with pytest.raises(ValueError, match=valid) as raised:
        bothways.compile(**option)
    assert isinstance(raised.value, errors.BothwaysError)


@pytest.mark.parametrize("target", [3, "name", [len], int, Scale], ids=repr)
def test_a_wrong_target_raises_at_the_call(target):
    with pytest.raises(errors.InvalidTarget):
        bothways.compile(target)


# Exceptions


def test_an_exception_is_the_users_own_with_the_users_frames():
    def inner(x):
        raise KeyError("mine")

    def program(x):
        return inner(x + 1)

    for fullgraph in (False, True):
        compiled = bothways.compile(program, fullgraph=fullgraph)
        for _ in range(5):
            with pytest.raises(KeyError, match="mine") as raised:
                compiled(X)
            names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert names[-2:] == ["program", "inner"]
            assert raised.value.__context__ is None and raised.value.__cause__ is None


def test_inputs_that_raise_do_not_keep_others_from_being_compiled():
    counter = CompileCounter()

    @bothways.compile(backend=counter)
    def program(x, n):
        if n < 0:
            raise ValueError(n)
        return x * n

    for _ in range(10):
        with pytest.raises(ValueError, match="-1"):
            program(X, -1)
    for _ in range(2):
        assert torch.equal(program(X, 2), X * 2)
    assert counter.frame_count == 1
    with pytest.raises(ValueError, match="-1"):
        program(X, -1)


def test_fullgraph_errors_carry_code_position_and_hint():
    def inner(x):
        return 1 if x.sum() > 0 else 2

    def program(x):
        return inner(x * 2)

    with pytest.raises(errors.Unsupported) as raised:
        bothways.compile(program, fullgraph=True)(X)
    found = raised.value.break_
    assert found.code in ("tensor_branch", "tensor_value")
    assert found.where.filename == __file__
    assert found.where.function.endswith("inner")
    assert found.where.text == "return 1 if x.sum() > 0 else 2"
    assert found.stack[0].text == "return inner(x * 2)"
    for part in (found.code, found.where.text, found.hint):
        assert part in str(raised.value)


def test_without_fullgraph_what_cannot_be_captured_runs_as_plain_python():
    @bothways.compile
    def program(x):
        return x + 1 if x.sum() > 0 else x - 1

    for _ in range(5):
        assert torch.equal(program(X), X + 1)
        assert torch.equal(program(-X), -X - 1)


def test_generators_and_coroutines_run_plainly_and_are_known_as_what_they_are():
    def generator(x):
        try:
            sent = yield x * 2
            while True:
                sent = yield sent + x
        except ValueError as error:
            yield str(error)

    async def coroutine(x):
        return [part async for part in async_generator(x)]

    async def async_generator(x):
        yield x * 2

    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    for function in (generator, coroutine, async_generator):
        compiled = bothways.compile(function, backend="eager")
        assert [kind(compiled) for kind in kinds] == [kind(function) for kind in kinds]
    for _ in range(5):
        talk = bothways.compile(generator, backend="eager")(X)
        found = [next(talk), talk.send(X), talk.throw(ValueError("stop"))]
        assert torch.equal(found[0], X * 2) and torch.equal(found[1], X + X) and found[2] == "stop"
        (part,) = asyncio.run(bothways.compile(coroutine, backend="eager")(X))
        assert torch.equal(part, X * 2)


# reset


def test_reset_forgets_every_program():
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: x + 1, backend=counter)
    compiled(X)
    bothways.reset()
    assert torch.equal(compiled(X), X + 1)
    assert counter.frame_count == 2


def test_reset_captures_again_what_has_broken():
    counter = CompileCounter()
    tricky = True

    @bothways.compile(backend=counter)
    def program(x):
        if tricky and x.sum() > 0:
            return x
        return x + 1

    for _ in range(5):
        program(X)
    before = counter.frame_count
    tricky = False
    bothways.reset()
    program(X)
    assert counter.frame_count == before + 1


# Threads


def test_several_threads_meet_the_first_call():
    counter = CompileCounter()

    @bothways.compile(backend=counter, dynamic=False)
    def program(x, n):
        return (x * n).sum() + n

    start = threading.Barrier(8)
    wrong = []

    def work(offset):
        start.wait()
        for step in range(100):
            n = (offset + step) % 6
            if program(X, n).item() != 7.0 * n:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counter.frame_count == 6
