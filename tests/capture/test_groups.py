"""Many tensors that a program hands on together: one tuple, which the table gives, or Python where there is none."""

import gc
import weakref

import pytest
import torch
from torch import nn

import bothways
from bothways.calls.call_library import call_library
from bothways.calls.guard_rows import Row
from bothways.capture.program import groups

FROM = 8


@pytest.fixture(autouse=True)
def grouped(monkeypatch):
    """However few names there are."""
    monkeypatch.setattr(groups, "FROM", FROM)


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(FROM // 2)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("in_c", [True, False], ids=["by table", "in Python"])
def test_a_step_takes_its_tensors_as_one_tuple(backend, in_c):
    plain, ours = Training(), Training()
    with bothways.config.patch(guards_in_c=in_c):
        compiled = bothways.compile(ours.step, backend=backend)
        for _ in range(4):
            x = torch.randn(2, 4)
            torch.testing.assert_close(compiled(x), plain.step(x))
            for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
                torch.testing.assert_close(one, other)
                torch.testing.assert_close(one.grad, other.grad)
        ours.model[0].weight = nn.Parameter(torch.ones(4, 4))  # another object is handed over
        plain.model[0].weight = nn.Parameter(torch.ones(4, 4))
        for _ in range(2):
            torch.testing.assert_close(compiled(x), plain.step(x))
    program = compiled.__bothways__.dispatcher.programs[-1]
    assert any(len(names) > 2 * FROM for names in program.groups.values())
    if in_c and call_library() is not None:
        assert set(program.groups) <= set(program.table.names)
        assert len(program.table.names) < 2 * FROM  # and not each of them as well


needs_c = pytest.mark.skipif(call_library() is None, reason="no C compiler")


@needs_c
@pytest.mark.parametrize("remembered_from", [None, 1])
def test_groups_hold_what_is_read_now(monkeypatch, remembered_from):
    library = call_library()
    if library.remembers_from is not None:
        monkeypatch.setattr(library, "remembers_from", remembered_from)
    rows = [Row("ITEM", 0, 2, object="a"), Row("ITEM", 0, 3, object="b"), Row("TYPE", 2, object=torch.Tensor)]
    check = library.check(rows, 4, 2, [2, [3, 2, 1, 2], [0]])
    names, other = {"a": torch.zeros(1), "b": torch.zeros(2)}, object()
    for turn in range(8):
        if turn == 5:
            names["b"] = torch.zeros(3)
        other = object() if turn % 2 else other  # an argument that changes
        first, group, given = check(names, other)
        assert first is names["a"] and given[0] is names
        assert [*map(id, group)] == [id(names["b"]), id(names["a"]), id(other), id(names["a"])]
    gone = weakref.ref(names["b"])
    del names["b"], group, first, given
    assert gone() is None
    assert not check(names, other)


@needs_c
def test_what_is_handed_over_is_held_while_the_last_rows_are_asked(monkeypatch):
    library = call_library()
    if library.remembers_from is not None:
        monkeypatch.setattr(library, "remembers_from", 1)

    class Letting:
        def __bool__(self):
            if turn == 4:
                names.clear()  # nothing is left of it but what the check holds
                gc.collect()
            return True

    rows = [Row("ITEM", 0, 2, object="a"), Row("TYPE", 2, object=torch.Tensor), Row("TRUE", 1)]
    check, letting = library.check(rows, 3, 2, [[2, 2]]), Letting()
    names = {"a": torch.ones(3)}
    for turn in range(5):
        [[one, other]] = check(names, letting)
        assert one is other and one.sum() == 3
        if turn < 4:
            del one, other
    assert not check(names, letting)


@pytest.mark.parametrize("wrong", [list.pop, lambda results: results.append(None)], ids=["one less", "one more"])
def test_a_backend_that_gives_another_number_of_results_is_not_believed(wrong):
    calls = []

    def backend(gm, inputs):
        def run(*values):
            results = list(gm(*values))
            calls.append(len(results))
            if len(calls) == 3:
                wrong(results)
            return results

        return run

    def many(*tensors):
        return [tensor + 1 for tensor in tensors]

    tensors = [torch.full((2,), float(number)) for number in range(2 * FROM)]
    compiled = bothways.compile(many, backend=backend)
    for turn in range(5):
        if turn == 2:
            with pytest.raises(ValueError, match="results instead of"):
                compiled(*tensors)
        else:
            assert all(torch.equal(one, other + 1) for one, other in zip(compiled(*tensors), tensors, strict=True))


def test_results_that_are_read_one_by_one_have_their_names():
    def step(tensors):
        doubled = [tensor * 2 for tensor in tensors]
        return doubled[3], doubled[-1], {"rest": doubled}

    tensors = [torch.full((2,), float(number)) for number in range(2 * FROM)]
    compiled = bothways.compile(step, backend="eager")
    for _ in range(2):
        assert str(compiled(tensors)) == str(step(tensors))
