"""Backward hooks of modules: the same tuples, order, counts and replaced gradients as uncompiled."""

import collections
import copy

import pytest
import torch
from agreeing import assert_same
from hooking import BACKENDS
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook, register_module_full_backward_pre_hook

import bothways
from bothways.errors import Unsupported
from bothways.testing import difference

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Using a non-full backward hook"),
    pytest.mark.filterwarnings("ignore:Using non-full backward hooks"),
]


def stack():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def shown(gradients):
    return [None if grad is None else grad.tolist() for grad in gradients]


def inputs():
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [x.clone().requires_grad_(), x.clone().requires_grad_(), x, x[:2].clone().requires_grad_()]


def check(make, prepare, backend, call=lambda module, x: module(x), whole=False):
    """Run the module plainly and compiled, as a function's callee or (``whole``) as the compiled module itself."""
    sides = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module, log, results = make(), [], []
        prepare(module, log)
        function = call
        if compiled and not whole:
            function = bothways.compile(call, backend=backend, fullgraph=True)
        target = bothways.compile(module, backend=backend, fullgraph=True) if compiled and whole else module
        for x in inputs():
            first = function(target, x)
            first = first[0] if isinstance(first, tuple) else first
            first.pow(2).sum().backward()
            results.append((first, x.grad, [p.grad.clone() for p in module.parameters() if p.grad is not None]))
        sides.append({"results and gradients": results, "what hooks noted": log})
    assert_same(*sides, f"backend {backend}")
    assert sides[0]["what hooks noted"], "no hook ran"
    return function


def note(module, log):
    for name, part in module.named_modules():
        part.register_full_backward_hook(lambda m, gi, go, name=name: log.append((name, shown(gi), shown(go))))


def test_on_every_level(backend):
    function = check(stack, note, backend)
    assert len(bothways.history(function)) == 3  # with gradients, without, and another size


def test_on_the_compiled_module_itself(backend):
    check(stack, note, backend, whole=True)


def test_gradients_are_replaced(backend):
    def prepare(module, log):
        module[1].register_full_backward_hook(lambda m, gi, go: log.append(shown(gi)) or (gi[0] * 3,))
        module[1].register_full_backward_hook(lambda m, gi, go: (gi[0] + 1,))
        module[0].register_full_backward_pre_hook(lambda m, go: log.append(shown(go)) or (go[0] * 2,))
        module[0].register_full_backward_hook(lambda m, gi, go: log.append(shown(go)))
        module.register_full_backward_pre_hook(lambda m, go: (go[0] - 1,))

    check(stack, prepare, backend, lambda module, x: module(x + module[0].bias))


def test_order_of_several_hooks_prepended_too(backend):
    def prepare(module, log):
        module[0].register_full_backward_hook(lambda m, gi, go: log.append("second"))
        module[0].register_full_backward_hook(lambda m, gi, go: log.append("first"), prepend=True)
        module[0].register_full_backward_pre_hook(lambda m, go: log.append("pre"))
        module[2].register_full_backward_hook(lambda m, gi, go: log.append("later layer"))

    check(stack, prepare, backend)


def test_forward_hooks_and_backward_hooks_together(backend):
    def prepare(module, log):
        note(module, log)
        module[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module[0].register_forward_hook(lambda m, args, out: out + args[0])
        module.register_forward_hook(lambda m, args, out: (out, 5))

    check(stack, prepare, backend)


def test_tuples_constants_and_keywords(backend):
    Pair = collections.namedtuple("Pair", "a b c")

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x, count, y, *, shift):
            return Pair(self.inner(x) + shift, y * count, count)

    def call(module, x):
        pair = module(x, 3, x + 1, shift=x * 2)
        assert type(pair) is Pair and pair.c == 3
        return pair.a, pair.b

    check(Several, note, backend, call)


def test_the_deprecated_kind(backend):
    def prepare(module, log):
        module[1].register_backward_hook(lambda m, gi, go: log.append((shown(gi), shown(go))))
        module[2].register_backward_hook(lambda m, gi, go: log.append((shown(gi), shown(go))))

    check(stack, prepare, backend)


def test_batch_norm_changes_its_statistics_on_the_way(backend):
    check(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), note, backend)


def test_a_module_that_is_called_twice(backend):
    check(lambda: nn.Linear(4, 4), note, backend, lambda module, x: module(module(x)))


def test_for_all_modules(backend):
    log = []
    handles = [
        register_module_full_backward_hook(lambda m, gi, go: log.append((type(m).__name__, shown(gi), shown(go)))),
        register_module_full_backward_pre_hook(lambda m, go: log.append((type(m).__name__, shown(go)))),
    ]
    try:
        check(stack, note, backend)
    finally:
        for handle in handles:
            handle.remove()
    assert log and log[: len(log) // 2] == log[len(log) // 2 :]


def test_hooks_come_and_go_between_calls(backend):
    torch.manual_seed(0)
    plain, log = stack(), []
    other = copy.deepcopy(plain)
    compiled = bothways.compile(lambda x: other(x), backend=backend, fullgraph=True)
    handles = []

    def step():
        sides = []
        for function in (plain, compiled):
            log.clear()
            x = inputs()[0]
            function(x).sum().backward()
            sides.append((x.grad, list(log)))
        assert difference(*sides) is None
        return len(log)

    counts = [step()]
    for module in (plain, other):
        handles.append(module[0].register_full_backward_hook(lambda m, gi, go: log.append("one")))
    counts += [step(), step()]
    captures = len(bothways.history(compiled))
    for module in (plain, other):
        handles.append(module[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)))
        handles.append(module[0].register_full_backward_hook(lambda m, gi, go: log.append("two")))
    counts.append(step())
    assert len(bothways.history(compiled)) == captures, "another hook beside one needs no new program"
    for handle in handles:
        handle.remove()
    counts.append(step())
    assert counts == [0, 1, 1, 2, 0]


def test_registered_inside_and_left(backend):
    def call(module, x):
        module[0].register_full_backward_hook(lambda m, gi, go: module.log.append(shown(go)))
        module[1].register_full_backward_pre_hook(lambda m, go: module.log.append("pre"))
        return module(x)

    def prepare(module, log):
        module.log = log

    check(stack, prepare, backend, call)


def test_registered_and_removed_inside_the_calls_between_have_it(backend):
    def call(module, x):
        before = module[0](x)
        handle = module[0].register_full_backward_hook(lambda m, gi, go: module.log.append(shown(go)) or (gi[0] * 2,))
        between = module[0](x * 2)
        handle.remove()
        handle.remove()
        return before + between + module[0](x * 3)

    def prepare(module, log):
        module.log = log

    check(stack, prepare, backend, lambda module, x: call(module, x + module[0].bias))


def test_a_hook_that_fails(backend):
    module = nn.Linear(4, 4)
    module.register_full_backward_hook(lambda m, gi, go: 1 / 0)
    result = bothways.compile(lambda x: module(x), backend=backend, fullgraph=True)(inputs()[0])
    with pytest.raises(ZeroDivisionError):
        result.sum().backward()


def test_the_wrong_number_of_gradients_is_refused_in_the_same_words(backend):
    module, messages = nn.Linear(4, 4), []
    module.register_full_backward_hook(lambda m, gi, go: (gi[0], gi[0]))
    for function in (module, bothways.compile(lambda x: module(x), backend=backend, fullgraph=True)):
        with pytest.raises(RuntimeError) as caught:
            function(inputs()[0]).sum().backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_changing_the_output_in_place_is_refused_as_uncompiled(backend):
    module, messages = nn.Linear(4, 4), []
    module.register_full_backward_hook(lambda m, gi, go: None)

    def program(x):
        return module(x).relu_()

    for function in (program, bothways.compile(program, backend=backend)):
        with pytest.raises(RuntimeError) as caught:
            function(inputs()[0])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_module_that_returns_something_else_runs_as_plain_python(backend):
    class Named(nn.Linear):
        def forward(self, x):
            return {"out": super().forward(x)}

    module = Named(4, 4)
    module.register_full_backward_hook(lambda m, gi, go: None)
    with pytest.raises(Unsupported, match="backward hooks"):
        bothways.compile(lambda x: module(x), backend=backend, fullgraph=True)(inputs()[0])
    with pytest.warns(UserWarning, match="For backward hooks to be called"):
        bothways.compile(lambda x: module(x), backend=backend)(inputs()[0])


def test_under_no_grad_nothing_is_hooked(backend):
    module, log = stack(), []
    note(module, log)

    def program(x):
        with torch.no_grad():
            y = module(x)
        return x * y.sum()

    x = inputs()[0]
    bothways.compile(program, backend=backend, fullgraph=True)(x).sum().backward()
    assert log == []
