"""Which sizes become symbols, what is guarded, and that no program is used for sizes it was not made for."""

import random
import threading

import pytest
import torch
from sizing import agree, agree_once, batches, guards

import bothways
from bothways.errors import InvalidTarget
from bothways.testing import CompileCounter, RecordGraphs


def captures(compiled):
    return len(bothways.history(compiled))


def doubled(x):
    return x * 2 + x.shape[0]


def test_the_first_program_is_static_and_the_second_is_not():
    compiled = agree(doubled, batches(None, 4), "eager")
    assert "L['x'].shape == (2, 4)" in guards(compiled, 0)
    second = guards(compiled, 1)
    assert "L['x'].shape[0] >= 2" in second
    assert "L['x'].shape[1] == 4" in second
    assert "L['x'].is_contiguous()" in second


def test_only_what_changed_is_a_symbol():
    compiled = agree(doubled, batches(None, 4, sizes=(2, 3)), "eager")
    agree_once(doubled, compiled, (torch.randn(3, 5),))
    agree_once(doubled, compiled, (torch.randn(7, 6),))
    assert captures(compiled) == 3
    assert "L['x'].shape[1] >= 2" in guards(compiled)


def test_guards_read_like_the_program():
    def program(x, y):
        if x.shape[0] > 4:
            return x[: y.shape[0]] + y
        return x.sum() + y.sum()

    compiled = bothways.compile(program, backend="eager")
    for n, m in ((5, 5), (6, 4), (9, 3)):
        agree_once(program, compiled, (torch.randn(n, 2), torch.randn(m, 2)))
    assert captures(compiled) == 2
    found = guards(compiled)
    assert "L['x'].shape[0] > 4" in found
    assert "L['x'].shape[0] >= L['y'].shape[0]" in found


def test_equal_sizes_are_one_guard():
    compiled = agree(lambda x, y: x + y, [(torch.randn(n, 4), torch.randn(n, 4)) for n in (2, 3, 5)], "native")
    assert "L['x'].shape[0] == L['y'].shape[0]" in guards(compiled)


def test_strides_are_guarded_as_expressions():
    compiled = agree(lambda x: x * 2, [(torch.randn(4, n).t(),) for n in (2, 3, 5)], "eager")
    assert "L['x'].stride() == (1, L['x'].shape[0],)" in guards(compiled)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_no_program_is_hit_by_sizes_that_it_is_wrong_for(backend):
    def program(x, y):
        n, m = x.shape[0], y.shape[0]
        if n == m:
            return x + y
        if n * 2 == m:
            return x.repeat(2, 1) * y
        if n % 3 == 0:
            return x * 3
        return y[: n // 2] - x[: n // 2] if m >= n // 2 else x

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    sizes = [(2, 2), (3, 3), (2, 4), (5, 10), (6, 7), (9, 4), (8, 7), (8, 3), (10, 4), (4, 4), (7, 14), (20, 10)]
    for n, m in [*sizes, (1, 2), *sizes[::-1]]:
        agree_once(program, compiled, (torch.randn(n, 2, requires_grad=True), torch.randn(m, 2, requires_grad=True)))


def test_everything_dynamic_from_the_start():
    compiled = agree(doubled, batches(None, 4), "native", programs=1, dynamic=True)
    agree_once(doubled, compiled, (torch.randn(3, 9, requires_grad=True),))
    assert captures(compiled) == 1
    agree(lambda x, n, f: x * n + f, [(torch.randn(3), n, n / 4) for n in (3, 5, 7)], "eager", programs=1, dynamic=True)


def test_nothing_dynamic():
    compiled = agree(doubled, batches(None, 4), "eager", programs=5, dynamic=False)
    assert captures(compiled) == 5
    compiled = agree(lambda x, n: x * n, [(torch.randn(3), n) for n in (3, 5, 7)], "eager", programs=3, dynamic=False)
    assert captures(compiled) == 3


def test_marked_dynamic():
    compiled = bothways.compile(doubled, backend="eager")
    for n in (2, 3, 5):
        x = torch.randn(n, 4)
        bothways.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), doubled(x))
    assert captures(compiled) == 1
    with pytest.raises(IndexError):
        bothways.mark_dynamic(x, 2)
    with pytest.raises(InvalidTarget):
        bothways.mark_dynamic(3, 0)


def test_marked_static():
    compiled = bothways.compile(doubled, backend="eager")
    for n in (2, 3, 5):
        x = torch.randn(n, 4)
        bothways.mark_static(x, 0)
        assert torch.equal(compiled(x), doubled(x))
    assert captures(compiled) == 3


def test_marked_static_inside():
    def program(x):
        bothways.mark_static(x, 0)
        return x * x.shape[0]

    compiled = agree(program, batches(None, 4, sizes=(2, 3, 5)), "eager", programs=3)
    assert captures(compiled) == 3
    assert "L['x'].shape[0] == 5" in guards(compiled)


def test_what_is_checked_is_known():
    def program(x):
        torch._check(x.shape[0] < 10)
        if x.shape[0] < 10:
            return x * 2
        return x

    compiled = agree(program, batches(None, 4, sizes=(2, 3, 5)), "eager")
    with pytest.raises(bothways.errors.Unsupported):
        compiled(torch.randn(11, 4))


def test_the_configuration_decides_for_whoever_says_nothing():
    with bothways.config.patch(automatic_dynamic=False):
        assert captures(agree(doubled, batches(None, 4), "eager", programs=5)) == 5
    with bothways.config.patch(assume_static=False):
        assert captures(agree(doubled, batches(None, 4), "eager")) == 1


def test_parameters_are_static():
    def program(module, x):
        return module.weight @ x

    compiled = bothways.compile(program, backend="eager")
    for size in (3, 4, 5):
        module = torch.nn.Linear(size, 2)
        x = torch.randn(size)
        assert torch.equal(compiled(module, x), program(module, x))
    assert all("weight'].shape[" not in text for text in guards(compiled))


def test_two_tensors_may_become_one():
    def program(x, y):
        x.add_(1)
        return y * 2

    compiled = bothways.compile(program, backend="eager")
    for n, m in ((2, 3), (4, 5), (6, 7)):
        agree_once(program, compiled, (torch.randn(n), torch.randn(m)))
    x, y = torch.zeros(4), torch.zeros(4)
    assert torch.equal(compiled(x, x), program(y, y))


def test_several_threads_with_several_sizes():
    def program(x):
        return (x.softmax(0) * x.shape[0]).tanh().sum()

    compiled = bothways.compile(program)
    wrong = []

    def work(seed):
        for size in random.Random(seed).choices(range(2, 40), k=20):
            x = torch.randn(size, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            program(x).backward()
            compiled(y).backward()
            if not torch.allclose(x.grad, y.grad, atol=1e-5):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_backend_is_given():
    graphs = RecordGraphs()
    compiled = bothways.compile(lambda x, n: x.view(x.shape[0] * 2, -1) * n, backend=graphs)
    for size in (2, 3):
        compiled(torch.randn(size, 4), size * 2)
    placeholders = [node for node in graphs.graphs[1].graph.nodes if node.op == "placeholder"]
    assert [node.name for node in placeholders] == ["s0", "s1", "l_x_"]
    assert all(isinstance(node.meta["example_value"], torch.SymInt) for node in placeholders[:2])
    tensor = torch.randn(5, 4)
    assert torch.equal(graphs.graphs[1](5, 7, tensor)[0], tensor.view(10, 2) * 7)


def test_reset_forgets_what_changed():
    compiled = bothways.compile(doubled, backend=CompileCounter())
    for args in batches(None, 4):
        compiled(*args)
    bothways.reset()
    compiled(torch.randn(7, 4))
    assert "L['x'].shape == (7, 4)" in guards(compiled)


def test_programs_are_explained():
    compiled = bothways.compile(doubled, backend="native")
    for args in batches(None, 4):
        compiled(*args).sum().backward()
    text = bothways.explain(doubled)(torch.randn(3, 4)).details
    assert "doubled" in text
    source = bothways.history(compiled)[1].source
    assert "shape[0] >= 2" in source
    written = bothways.explain(compiled).generated[-1].texts["C"]
    assert "int64_t s0" in written
