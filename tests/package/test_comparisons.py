"""Plain and compiled are compared in one place, ``agreeing.py``, which names what differs."""

import ast
from pathlib import Path

import pytest
import torch
from agreeing import agree, assert_same

TESTS = Path(__file__).parent.parent
# Files that share a way to make programs or calls, and what they compare by.
DOORS = {
    "hooking.py": "agreeing",
    "observing.py": "agreeing",
    "custom_functions.py": "agreeing",
    "programs.py": "agreeing",
    "stepping.py": "agreeing",
    "sizing.py": "torch.testing, with the tolerances of each dtype",
    "second_derivatives.py": "torch.testing, with the tolerances of each dtype",
    "faults_threads.py": "a truth, as threads report and do not raise",
}


def functions_called_agree(path):
    text = path.read_text()
    nodes = ast.parse(text).body if "def agree(" in text else []
    return [node for node in nodes if getattr(node, "name", "") == "agree"]


def test_no_test_file_has_a_comparison_of_its_own():
    assert [path.name for path in sorted(TESTS.rglob("test_*.py")) if functions_called_agree(path)] == []


def test_what_test_files_share_is_listed():
    found = {path.name for path in TESTS.glob("*.py") if functions_called_agree(path)}
    assert found == {"agreeing.py", *DOORS}
    for name, by in DOORS.items():
        assert ("from agreeing import" in (TESTS / name).read_text()) == (by == "agreeing"), name


def result(function, x):
    x = x.clone()
    return {"result": function(x), "argument afterwards": x}


X = torch.ones(2)


def differently(x):
    """Says whether it is being compiled, which no program should."""
    return x + 1 if torch.compiler.is_compiling() else x + 2


def test_what_differs_is_named_with_the_call_and_the_backend():
    with pytest.raises(AssertionError, match=r"call 1 of 2, backend eager: result: .*\nplain .*\ncompiled "):
        agree(differently, result, X, X)
    with pytest.raises(AssertionError, match="somewhere: argument afterwards: result: values differ in 1 of 2"):
        assert_same({"argument afterwards": X}, {"argument afterwards": torch.tensor([1.0, 3.0])}, "somewhere")
    with pytest.raises(AssertionError, match=r"plain shows \['result'\], compiled \['what is raised'\]"):
        assert_same({"result": X}, {"what is raised": "ValueError"}, "somewhere")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_second_call_that_has_to_hit(backend):
    compiled = agree(lambda x: x.mul_(2) + 1, result, X, X, backend=backend, programs=1, fullgraph=True)
    assert torch.equal(compiled(X.clone()), X * 2 + 1)
    with pytest.raises(AssertionError, match="2 programs instead of 1 after 2 calls"):
        agree(lambda x: x + 1, result, X, X.double(), backend=backend, programs=1)


def test_sides_begin_alike():
    seen = []

    def program(x):
        seen.append(len(seen))
        return x + len(seen)

    def observe(function, x):
        return {"result": function(x), "calls": list(seen)}

    agree(program, observe, X, X, reset=seen.clear)
    with pytest.raises(AssertionError, match="call 1 of 2"):
        agree(program, observe, X, X)
