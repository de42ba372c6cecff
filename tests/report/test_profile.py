"""``bothways.profile``: times and bytes of kernels and ATen calls, with lines; and names in ``torch.profiler``."""

import json
import re

import pytest
import torch
from torch import nn

import bothways
from bothways.lower.host import watching


def step_of(backend="native"):
    layer = nn.Linear(64, 64).double()  # whose products are ATen's
    norm = nn.LayerNorm(64).double()

    @bothways.compile(backend=backend)
    def step(x):
        y = layer(norm(x)).relu()
        return (y * y).sum()

    return step


X = torch.randn(256, 64, dtype=torch.float64)


def test_each_kernel_and_each_call_has_times_bytes_and_lines():
    step = step_of()
    step(X).backward()
    with bothways.profile() as profile:
        for _ in range(3):
            step(X).backward()
    kinds = {row.kind for row in profile.rows}
    assert kinds == {"kernel", "ATen"}
    assert all(row.count % 3 == 0 and row.nanoseconds > 0 and row.moved > 0 for row in profile.rows)
    assert all(re.fullmatch(r"test_profile\.py:\d+", place) for row in profile.rows for place in row.where)
    assert {"forward", "backward"} == {row.graph for row in profile.rows}
    addmm = next(row for row in profile.rows if row.name == "addmm")
    line = step.__wrapped__.__code__.co_firstlineno + 2
    assert addmm.where == (f"test_profile.py:{line}",) and addmm.count == 3


def test_calls_of_aten_eager_are_measured_too():
    step = step_of("aot_eager")
    step(X).backward()
    with bothways.profile() as profile:
        step(X).backward()
    assert {"ATen"} == {row.kind for row in profile.rows}
    relu = next(row for row in profile.rows if row.name == "relu")
    assert relu.count == 1 and relu.where[0].startswith("test_profile.py:")


def test_what_is_compiled_inside_is_measured_from_its_first_run():
    step = step_of()
    with bothways.profile() as profile:
        step(X).backward()
    assert any(row.kind == "kernel" for row in profile.rows)


def test_results_are_the_same_and_nothing_is_left_behind():
    step = step_of()
    expected = step(X).detach()
    programs = dict(watching._programs.items())
    before = {}
    for run, known in programs.items():
        before[run] = {name: run.__globals__[name] for name in known.originals}, run.__code__
    with bothways.profile():
        assert torch.equal(step(X).detach(), expected)
    for run, (names, code) in before.items():
        assert {name: run.__globals__[name] for name in names} == names and run.__code__ is code
    assert torch.equal(step(X).detach(), expected)


def test_an_exception_ends_it_as_well():
    step = step_of()
    step(X)
    with pytest.raises(KeyError), bothways.profile() as profile:
        step(X)
        raise KeyError(1)
    count = sum(row.count for row in profile.rows)
    step(X)
    assert count == sum(row.count for row in profile.rows) > 0


def test_two_at_once_each_see_all():
    step = step_of()
    step(X)
    with bothways.profile() as outer:
        step(X)
        with bothways.profile() as inner:
            step(X)
    calls = [sum(row.count for row in profile.rows if row.kind == "ATen") for profile in (outer, inner)]
    assert calls == [2, 1]


def test_as_a_table_a_page_and_a_trace(tmp_path):
    step = step_of()
    step(X).backward()
    with bothways.profile() as profile:
        step(X).backward()
    assert "addmm (ATen, forward)" in str(profile) and "test_profile.py:" in str(profile)
    assert "<pre>" in profile._repr_html_()
    assert profile.html(tmp_path / "profile.html") == (tmp_path / "profile.html").read_text()
    trace = json.loads(profile.trace(tmp_path / "trace.json").read_text())
    assert {event["ph"] for event in trace["traceEvents"]} == {"X"}
    assert sum(row.count for row in profile.rows) == len(trace["traceEvents"])


def test_a_report_has_the_times_of_kernels(tmp_path):
    step = step_of()
    step(X)
    with bothways.profile() as profile:
        step(X), step(X)
    explanation = bothways.explain(step)
    kernel = explanation.kernels[0]
    python = explanation.generated[0].texts["Python"]
    count, taken = profile.of_kernel(python, kernel.name)
    assert count == 2 and taken > 0


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_traces_of_pytorchs_profiler_name_our_graphs_and_kernels(backend):
    step = step_of(backend)
    expected = step(X).detach()
    step(X).backward()
    with torch.profiler.profile() as recorded:
        result = step(X)
        result.backward()
    assert torch.equal(result.detach(), expected)
    names = {event.key for event in recorded.key_averages() if event.key.startswith("bothways")}
    title = step.__qualname__
    assert {f"bothways {title} (forward)", f"bothways {title} (backward)"} <= names
    if backend == "native":
        assert any(re.search(r"\(forward\) .*relu.*, test_profile\.py:\d+", name) for name in names)
    code = {run.__code__.co_name for run in watching._programs}
    assert watching.AROUND not in code
