"""``bothways.report``: one HTML file with the source, coloured by what became of each line, and all facts behind it."""

import base64
import json
import re
import zlib
from pathlib import Path

import pytest
import torch
from pythons import run_python
from torch import nn

import bothways

ROOT = Path(__file__).parent.parent.parent


def data_of(text):
    """The facts that a page holds."""
    kind, data = re.search(r'<script type="([^"]+)" id="data">(.*?)</script>', text, re.DOTALL).groups()
    if kind == "application/zlib":
        data = zlib.decompress(base64.b64decode(data))
    return json.loads(data)


def states_of(data, function):
    """What became of the lines of a function: text -> state."""
    found = {}
    for file in data["files"]:
        for block in file["functions"]:
            if block["name"].rpartition(".")[2] == function:
                for number, text in zip(block["numbers"], block["text"], strict=True):
                    found[text.strip()] = block["facts"].get(str(number), {}).get("s")
    return found


def program(x, w, flag):
    y = x @ w
    bothways.graph_break()
    z = torch.nn.functional.layer_norm(y, y.shape[-1:])
    if flag:
        z = z.relu()
    name = "a" + "b"
    return (z * z).sum()


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    compiled = bothways.compile(program)
    w = torch.randn(32, 32, dtype=torch.float64, requires_grad=True)
    for rows in (64, 64, 96):
        compiled(torch.randn(rows, 32, dtype=torch.float64), w, True).backward()  # products of doubles are ATen's
    assert bothways.report(compiled, path) == path
    return path.read_text(), data_of(path.read_text())


def test_lines_are_coloured_by_what_became_of_them(reported):
    _, data = reported
    assert states_of(data, "program") == {
        "def program(x, w, flag):": "folded",
        "y = x @ w": "aten",
        "bothways.graph_break()": "break",
        "z = torch.nn.functional.layer_norm(y, y.shape[-1:])": "kernel",
        "if flag:": "guard",
        "z = z.relu()": "kernel",
        'name = "a" + "b"': "folded",
        "return (z * z).sum()": "kernel",
    }


def test_a_recompilation_is_a_diff_of_guards(reported):
    _, data = reported
    again = [one for one in data["compilations"] if one["failed"]]
    assert len(again) == 2 and all("shape" in one["failed"] for one in again)
    assert ["-", "L['x'].shape == (64, 32)"] in again[0]["diff"]
    assert any(sign == "+" and "L['x'].shape[0]" in text for sign, text in again[0]["diff"])


def test_graphs_are_linked_with_lines_and_kernels_with_code(reported):
    _, data = reported
    assert {graph["name"] for graph in data["graphs"]} == {"captured", "joint", "forward", "backward"}
    for graph in data["graphs"]:
        for name, op, _, _, _, inputs, place in graph["nodes"]:
            assert all(graph["nodes"][index][0] != name for index in inputs)
            assert place is None or len(data["places"][place]) == 3
    kernel = next(one for one in data["kernels"] if "relu" in one["name"])
    assert ["aten.relu.default", Path(__file__).name] == kernel["members"][-1][:2]
    assert kernel["read"] > 0 and kernel["written"] > 0
    assert kernel["name"] in data["texts"][kernel["text"]]["texts"]["C"]


def test_memory_kept_for_the_backward_is_told_by_line(reported):
    _, data = reported
    saved = [value for one in data["compilations"] for value in one["saved"] if not value[4]]
    assert saved and all(size > 0 for _, _, size, _, _ in saved)
    lines = [block["facts"] for file in data["files"] for block in file["functions"]]
    assert sum(facts.get("m", 0) for facts in lines for facts in facts.values()) == sum(value[2] for value in saved)


def test_stages_have_a_time_and_a_length(reported):
    _, data = reported
    for one in data["compilations"]:
        assert one["spans"] and all(length >= 0 for _, _, length in one["spans"])
        assert [begin for _, begin, _ in one["spans"]] == sorted(begin for _, begin, _ in one["spans"])


def test_the_page_needs_nothing_but_itself(reported):
    text, _ = reported
    assert "<link" not in text and "@import" not in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|importScripts)\s*\(", text)


def test_nothing_in_the_source_ends_the_page():
    def hostile(x):
        text = "</script><script>alert(1)</script> @DATA@ @TITLE@ <!--"
        return x * len(text)

    hostile.__qualname__ = "</title><b>@DATA@"
    compiled = bothways.compile(hostile, backend="eager")
    compiled(torch.ones(3))
    text = bothways.explain(compiled).html()
    assert "alert(1)</script>" not in text and "<b>@DATA@" not in text
    assert "</script><script>alert" in json.dumps(data_of(text)["files"])


def test_lines_after_a_break_that_run_as_python_say_so():
    def rest(x):
        y = x + 1
        for value in (bothways.graph_break(), 1):
            y = y * 2
        return y

    compiled = bothways.compile(rest)
    compiled(torch.ones(300))
    data = data_of(bothways.explain(compiled).html())
    plain = [text for one in data["functions"] for text in one["standings"] if "plain Python" in text]
    if plain:
        assert "python" in states_of(data, "rest").values()
    assert states_of(data, "rest")["for value in (bothways.graph_break(), 1):"] == "break"


def test_what_is_in_a_layer_is_told_at_the_line_that_calls_it():
    layer = nn.Linear(64, 64)

    def uses(x):
        return layer(x).relu()

    compiled = bothways.compile(uses)
    compiled(torch.randn(128, 64))
    data = data_of(bothways.explain(compiled).html())
    assert states_of(data, "uses")["return layer(x).relu()"] == "kernel"


def test_several_functions_and_all_of_them(tmp_path):
    one, other = bothways.compile(lambda x: x + 1), bothways.compile(lambda x: x * 2)
    one(torch.ones(2)), other(torch.ones(2))
    data = data_of(bothways.report([one, other], tmp_path / "both.html").read_text())
    assert len(data["functions"]) == 2
    data = data_of(bothways.report(None, tmp_path / "all.html").read_text())
    assert len(data["functions"]) >= 2


def test_a_function_that_was_not_called_has_a_page(tmp_path):
    data = data_of(bothways.report(bothways.compile(program), tmp_path / "empty.html").read_text())
    assert data["compilations"] == [] and "not called yet" in data["functions"][0]["summary"][0]


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        bothways.report(bothways.compile(program), tmp_path / "nowhere" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_programs_from_the_cache_on_disk_are_told(tmp_path):
    script = tmp_path / "cached.py"
    script.write_text(
        "import torch\n"
        "@torch.compile\n"
        "def f(x):\n"
        "    return (x.sin() * 2).sum(1)\n"
        "f(torch.randn(300, 300))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "BOTHWAYS_CACHE_DIR": str(tmp_path / "cache")}
    cached = []
    for name in ("first.html", "second.html"):
        finished = run_python(
            ["-m", "bothways", "report", "-o", name, "cached.py", "-o"], cwd=tmp_path, env=environment
        )
        assert finished.returncode == 0, finished.stderr
        assert f"wrote the report to {name}" in finished.stderr
        data = data_of((tmp_path / name).read_text())
        cached.append([half for one in data["compilations"] for half in one["cached"]])
        assert [member[0] for member in data["kernels"][0]["members"]] == [
            "aten.sin.default", "aten.mul.Tensor", "aten.sum.dim_IntList",
        ]  # fmt: skip
    assert cached == [[], ["forward"]]


def test_a_program_that_fails_has_a_report_and_its_own_exit_status(tmp_path):
    text = "import torch\ntorch.compile(lambda x: x + 1)(torch.ones(2))\nraise KeyError(1)\n"
    (tmp_path / "fails.py").write_text(text)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    finished = run_python(["-m", "bothways", "report", "fails.py"], cwd=tmp_path, env=environment)
    assert finished.returncode == 1 and "KeyError: 1" in finished.stderr
    assert f'File "{tmp_path}/fails.py", line 3' in finished.stderr and "commands/" not in finished.stderr
    assert len(data_of((tmp_path / "report.html").read_text())["compilations"]) == 1


def test_a_report_without_a_program_says_how_it_is_used(capsys):
    from bothways.commands.report import write_report

    assert write_report(["-o", "x.html"]) == 2
    assert "a program is expected" in capsys.readouterr().err
