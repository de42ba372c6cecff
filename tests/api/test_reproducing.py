"""``python -m bothways repro`` writes the fewest operations that fail or differ, with their inputs, as a script."""

import runpy

import pytest
import torch

import bothways
from bothways.__main__ import main
from bothways.lower.dialects.c_family import operators as in_c
from bothways.testing import RecordGraphs
from bothways.testing.reproducing import INSIDE, Watcher, problem_of, smallest, write

# Runs as a program of its own, and says which kernel is wrong before it is compiled.
PROGRAM = """
import torch

layer = torch.nn.Linear(8, 8)

@torch.compile
def loss(x):
    hidden = layer(x).sin() * 3
    return (torch.softmax(hidden, -1).cos() + x).sum()

loss(torch.randn(5, 8)).backward()
print("gradient", tuple(layer.weight.grad.shape))
"""


@pytest.fixture
def wrong_kernels(monkeypatch):
    """What is wrong here must not be found by other tests."""
    right = in_c.TEMPLATES["exp"]
    monkeypatch.setitem(in_c.TEMPLATES, "exp", "(exp{F}({0}) * (T)1.5 + (T)0.5)")
    with bothways.config.patch(kernel_cache=False):
        yield lambda: in_c.TEMPLATES.update(exp=right)
    bothways.set_stance("default")
    bothways.uninstall()


def graph_of(function, *inputs):
    recorded = RecordGraphs()
    bothways.compile(function, backend=recorded)(*inputs)
    return recorded.only.gm, list(recorded.only.example_inputs)


def exit_of(path):
    with pytest.raises(SystemExit) as raised:
        runpy.run_path(str(path))
    return raised.value.code


def test_a_program_with_a_wrong_kernel_is_cut_down_to_a_script(wrong_kernels, tmp_path, capsys):
    program, script = tmp_path / "program.py", tmp_path / "repro.py"
    program.write_text(PROGRAM)
    assert main(["repro", "-o", str(script), str(program)]) == 1
    said = capsys.readouterr()
    assert "gradient (8, 8)" in said.out  # the program went on, with what was captured
    assert f"wrote {script}" in said.err and "values differ" in said.err
    text = script.read_text()
    assert "softmax" in text and "linear" not in text and ".sin()" not in text
    bothways.set_stance("default")
    assert exit_of(script) == 1
    assert "at fault: kernels" in capsys.readouterr().out
    wrong_kernels()  # are right from now on
    assert exit_of(script) == 0
    assert "agree with plain Python" in capsys.readouterr().out


def test_a_program_whose_graphs_agree_writes_nothing(tmp_path, capsys):
    program, script = tmp_path / "program.py", tmp_path / "repro.py"
    program.write_text(PROGRAM)
    try:
        assert main(["repro", "-o", str(script), str(program)]) == 0
    finally:
        bothways.set_stance("default")
        bothways.uninstall()
    assert not script.exists() and "1 graph: none goes wrong" in capsys.readouterr().err


def test_without_a_program_the_usage_is_shown(capsys):
    assert main(["repro"]) == 2 and main(["repro", "-x"]) == 2
    assert "usage: python -m bothways repro" in capsys.readouterr().err


def refuses_cos(graph, inputs):
    if any(node.target == "cos" for node in graph.graph.nodes):
        raise RuntimeError("no cosine today")
    return graph.forward


def test_a_backend_that_fails_is_cut_down_to_what_it_fails_at():
    graph, inputs = graph_of(lambda x: (x.sin().cos() + 1).tanh(), torch.randn(3))
    assert "no cosine today" in problem_of(graph, inputs, refuses_cos)
    smaller, given = smallest(graph, inputs, refuses_cos)
    assert [node.target for node in smaller.graph.nodes if node.op.startswith("call")] == ["cos"]
    assert len(given) == 1


def test_what_is_compared_leaves_the_inputs_alone():
    graph, inputs = graph_of(lambda x: x.add_(1).sum(), torch.zeros(3))
    inputs[0].zero_()
    weight = torch.ones(3, requires_grad=True)
    assert problem_of(graph, inputs, "native") is None
    assert problem_of(*graph_of(lambda w: (w * 2).sin(), weight * 1), "native") is None
    assert torch.equal(inputs[0], torch.zeros(3)) and weight.grad is None


def test_large_inputs_lie_beside_the_script(tmp_path):
    graph, inputs = graph_of(lambda x: x.sin() * 2, torch.randn(INSIDE // 2))
    path = tmp_path / "place" / "repro.py"
    write(path, graph, inputs, "a\n\"\"\"problem\\")
    assert path.with_suffix(".pt").exists() and len(path.read_text()) < 3000
    assert exit_of(path) == 0


def test_a_problem_may_hold_characters_that_no_file_can(tmp_path):
    graph, inputs = graph_of(lambda x: x.sin() * 2, torch.ones(3))
    write(tmp_path / "repro.py", graph, inputs, "größe \udcff is wrong")
    assert "größe" in (tmp_path / "repro.py").read_text(encoding="utf-8")
    assert exit_of(tmp_path / "repro.py") == 0


def test_constants_of_a_graph_and_names_come_along(tmp_path):
    table = torch.arange(4.0)

    def use(x):
        return torch.where(x > 0, x * table, -float("inf")).to(torch.float64)

    graph, inputs = graph_of(use, torch.randn(4))
    path = tmp_path / "repro.py"
    write(path, graph, inputs, "a problem")
    assert exit_of(path) == 0


def test_a_graph_that_has_no_text_is_said_to_have_none(tmp_path):
    @bothways.allow_in_graph
    def own(x):
        return x + 1

    graph, inputs = graph_of(lambda x: own(x) * 2, torch.ones(2))
    watcher = Watcher(tmp_path / "repro.py", lambda graph, inputs: lambda *given: (given[0],))
    watcher(graph, inputs)
    assert watcher.problem is not None
    assert "no text" in watcher.unwritten and not watcher.path.exists()
