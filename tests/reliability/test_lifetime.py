"""Lifetimes: programs keep nothing of the user's alive, and nothing keeps programs alive but their function."""

import contextlib
import gc
import linecache
import weakref

import pytest
import torch
from torch import nn

import bothways
from bothways import torch_compat
from bothways.capture.tracer import Tracer
from bothways.testing import CompileCounter


class Owner:
    pass


def alive(references):
    gc.collect()
    return [name for name, reference in references.items() if reference() is not None]


def watch(**objects):
    return {name: weakref.ref(thing) for name, thing in objects.items()}


def test_input_tensors_are_not_kept():
    compiled = bothways.compile(lambda x, y: x + y)
    x, y = torch.ones(3), torch.ones(3)
    references = watch(x=x, y=y, result=compiled(x, y))
    compiled(x, y)
    del x, y
    assert alive(references) == []


def test_modules_and_their_parameters_are_not_kept():
    counter = CompileCounter()
    compiled = bothways.compile(lambda module, x: module(x), backend=counter)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    references = watch(module=module, linear=module[0], weight=module[0].weight, mean=module[1].running_mean)
    compiled(module, torch.ones(2, 4))
    compiled(module, torch.ones(2, 4))
    assert counter.frame_count == 1
    del module
    assert alive(references) == []


def test_containers_objects_and_closures_are_not_kept():
    def program(x, values, owner, function):
        values.append(x)
        owner.last = x
        return function(values[0]) + owner.scale

    compiled = bothways.compile(program, fullgraph=True)
    x, first, scale = torch.ones(3), torch.ones(3), torch.ones(3)
    owner = Owner()
    owner.scale = scale
    values = [first]

    def closing_over(captured):
        return lambda v: v * captured

    function = closing_over(torch.ones(3))
    captured = function.__closure__[0].cell_contents
    references = watch(x=x, first=first, scale=scale, captured=captured, owner=owner, function=function)
    compiled(x, values, owner, function)
    compiled(x, values, owner, function)
    del x, first, scale, captured, owner, function, values
    assert alive(references) == []


def test_objects_used_as_keys_are_not_kept():
    compiled = bothways.compile(lambda x, d, key: x + d[key], fullgraph=True)
    key = Owner()
    references = watch(key=key)
    compiled(torch.ones(3), {key: 2}, key)
    del key
    assert alive(references) == []


def test_globals_that_are_replaced_are_not_kept():
    namespace = {"scale": torch.ones(3)}
    exec("def program(x):\n    return x * scale", namespace)
    compiled = bothways.compile(namespace["program"])
    references = watch(scale=namespace["scale"])
    compiled(torch.ones(3))
    namespace["scale"] = torch.zeros(3)
    assert alive(references) == []


def test_a_break_keeps_nothing():
    def program(x, module):
        return module(x) if x.sum() > 0 else x

    compiled = bothways.compile(program)
    x, module = torch.ones(4), nn.Linear(4, 4)
    references = watch(x=x, module=module)
    compiled(x, module)
    del x, module
    assert alive(references) == []


def test_a_capture_that_was_given_up_goes_with_its_symbols():
    @bothways.compile(backend="eager")
    def program(x):
        y = x * x.shape[0]
        bothways.graph_break()
        return y + x.shape[0]

    for size in (2, 3, 4):
        program(torch.ones(size))
    del program
    gc.collect()
    assert not any(type(thing) is Tracer for thing in gc.get_objects())


def test_an_exception_keeps_nothing():
    def program(x, owner):
        raise ValueError("no")

    compiled = bothways.compile(program)
    x, owner = torch.ones(4), Owner()
    references = watch(x=x, owner=owner)
    with pytest.raises(ValueError, match="no"):
        compiled(x, owner)
    del x, owner
    assert alive(references) == []


def test_an_exception_that_was_handled_after_a_break_keeps_nothing():
    def inner(x, owner):
        bothways.graph_break()
        raise ValueError("no")

    def program(x, owner):
        for _ in range(2):
            try:
                inner(x, owner)
            except ValueError:
                bothways.graph_break()
        return x

    compiled = bothways.compile(program, backend="eager")
    compiled(torch.ones(4), Owner())
    gc.collect()
    gc.disable()
    try:
        owner = Owner()
        references = {"owner": weakref.ref(owner)}
        compiled(torch.ones(4), owner)
        del owner
        assert references["owner"]() is None, "no cycle waits for the garbage collector"
    finally:
        gc.enable()


def test_history_keeps_no_tensors():
    compiled = bothways.compile(lambda x, n: x * n)
    tensors = [torch.ones(size) for size in (2, 3, 4)]
    references = {str(tensor.shape): weakref.ref(tensor) for tensor in tensors}
    for n, tensor in enumerate(tensors):
        compiled(tensor, n)
    compilations = bothways.history(compiled)
    assert len(compilations) == 2 and sum(one.is_recompilation for one in compilations) == 1
    del tensors, tensor
    assert alive(references) == []
    assert not any(
        isinstance(value, torch.Tensor) and not torch_compat.is_fake(value)
        for compilation in compilations
        for node in compilation.graph.graph.nodes
        for value in node.meta.values()
    )


def test_a_compiled_function_is_collected_with_its_programs():
    def program(x):
        return x * 2

    compiled = bothways.compile(program)
    compiled(torch.ones(3))
    state = compiled.__bothways__
    [compilation] = bothways.history(compiled)
    made, graph = compilation.program, compilation.graph
    references = watch(compiled=compiled, original=program, state=state, program=made, graph=graph)
    references |= watch(compilation=compilation)
    del compiled, program, state, made, graph, compilation
    assert alive(references) == []


def test_a_compiled_module_is_collected():
    module = nn.Linear(4, 4)
    compiled = bothways.compile(module)
    compiled(torch.ones(4))
    references = watch(module=module, compiled=compiled, weight=module.weight)
    del module, compiled
    assert alive(references) == []


@contextlib.contextmanager
def no_collector():
    """Nothing is freed but what has no reference any more."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def still_there(references):
    return [name for name, reference in references.items() if reference() is not None]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_dropped_module_does_not_wait_for_the_garbage_collector(backend):
    with no_collector():
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        compiled = bothways.compile(module, backend=backend)
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
        state = bothways.api.modules.state_of(compiled)
        references = watch(module=module, twin=compiled, weight=module[0].weight, state=state)
        references["program"] = weakref.ref(state.programs[0])
        del module, compiled, state
        assert still_there(references) == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("kind", ["whole", "breaking", "raising", "with sizes"])
def test_a_dropped_function_does_not_wait_for_the_garbage_collector(backend, kind):
    def make():
        scale = torch.ones(1)

        def program(x):
            y = torch.sin(x * scale)
            if kind == "breaking":
                bothways.graph_break()
            if kind == "raising":
                raise ValueError
            return y + 1

        return program, weakref.ref(scale)

    with no_collector():
        program, scale = make()
        compiled = bothways.compile(program, backend=backend)
        for size in (3, 3, 4, 5) if kind == "with sizes" else (3, 3):
            with contextlib.suppress(ValueError):
                compiled(torch.ones(size))
        references = watch(compiled=compiled, state=compiled.__bothways__, program=program) | {"scale": scale}
        references |= {f"program {n}": weakref.ref(made) for n, made in enumerate(bothways.explain(compiled).programs)}
        del compiled, program
        assert still_there(references) == []


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_forced_backend_does_not_keep_a_dropped_function(backend):
    with no_collector():
        compiled = bothways.compile(lambda x: x * 2, backend="eager")
        try:
            bothways.set_stance(force_backend=backend)
            compiled(torch.ones(3))
        finally:
            bothways.set_stance("default")
        references = watch(compiled=compiled, state=compiled.__bothways__)
        del compiled
        assert still_there(references) == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_function_called_at_a_break_is_not_kept(backend):
    def make():
        scale = torch.ones(3)

        def callee(x):
            y = x * scale
            print(end="")
            return y + scale

        return callee, weakref.ref(scale)

    def program(x, f):
        return torch.sin(f(x)) + 1

    compiled = bothways.compile(program, backend=backend)
    with no_collector():
        for _ in range(3):
            callee, scale = make()
            for _ in range(2):
                assert torch.equal(compiled(torch.ones(3), callee), program(torch.ones(3), callee))
            references = watch(callee=callee) | {"scale": scale}
            del callee
            assert still_there(references) == []


def test_a_function_called_at_a_break_whose_code_or_defaults_change():
    def callee(x, n=2):
        print(end="")
        return x * n

    def other(x, n=2):
        print(end="")
        return x - n

    def program(x):
        return callee(x) + 1

    compiled, x = bothways.compile(program, backend="eager"), torch.ones(3)
    for change in (lambda: None, lambda: setattr(callee, "__defaults__", (5,)),
                   lambda: setattr(callee, "__code__", other.__code__)):  # fmt: skip
        change()
        for _ in range(2):
            assert torch.equal(compiled(x), program(x))


def test_a_compiled_method_does_not_keep_its_class():
    class Scale:
        @bothways.compile
        def method(self, x):
            return x * 2

    Scale().method(torch.ones(3))
    references = watch(cls=Scale)
    del Scale
    assert alive(references) == []


def test_reset_lets_programs_go():
    compiled = bothways.compile(lambda x: x * 2)
    compiled(torch.ones(3))
    references = watch(
        program=bothways.history(compiled)[0].program, graph=bothways.history(compiled)[0].graph
    )
    bothways.reset()
    assert alive(references) == []


def test_generated_source_goes_with_the_function():
    def short_lived(x):
        return x * 2

    compiled = bothways.compile(short_lived)
    compiled(torch.ones(3))
    assert any("short_lived" in filename for filename in linecache.cache)
    del compiled
    gc.collect()
    assert not any("short_lived" in filename for filename in linecache.cache)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_backward_keeps_nothing_alive(backend):
    def program(x, layer):
        return layer(x).sum()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x, layer = torch.ones(2, 3, requires_grad=True), torch.nn.Linear(3, 3)
    compiled(x, layer).backward()
    (gradient,) = torch.autograd.grad(compiled(x, layer), x, create_graph=True)
    watched = [weakref.ref(value) for value in (x, layer, layer.weight, gradient)]
    del x, layer, gradient
    gc.collect()
    assert [reference() for reference in watched] == [None] * 4
