"""Wrong arguments raise at the call, say what was wrong and what is expected, and leave nothing behind."""

import re
import sys

import pytest
import torch
from pythons import run_python

import bothways
from bothways.__main__ import main

X = torch.ones(3)


def f(x):
    return x.sin() + 1


COMPILED = bothways.compile(f, backend="eager")

# What is called, the exception, and the words of it that people need.
CALLS = {
    "a number is no function": (lambda to: bothways.report(3, to / "r.html"), TypeError, "a list of those"),
    "the path comes second": (lambda to: bothways.report(str(to / "r.html"), COMPILED), TypeError, "path of a file"),
    "no function": (lambda to: bothways.report(str(to), to / "r.html"), TypeError, "report takes what compile"),
    "no path": (lambda to: bothways.report(COMPILED, None), TypeError, "path of a file is expected, not None"),
    "an empty path": (lambda to: bothways.report(COMPILED, ""), TypeError, "path of a file is expected, not ''"),
    "a folder": (lambda to: bothways.report(COMPILED, to), IsADirectoryError, "this is a folder"),
    "nowhere": (lambda to: bothways.report(COMPILED, to / "no" / "r"), FileNotFoundError, "no such folder to write to"),
    "no profile": (lambda to: bothways.report(COMPILED, to / "r", profile=3), TypeError, "bothways.profile() as p"),
    "html to a number": (lambda to: bothways.explain(COMPILED).html(3), TypeError, "path of a file is expected, not 3"),
    "html, no profile": (lambda to: bothways.explain(COMPILED).html(profile=f), TypeError, "bothways.profile() as p"),
    "a trace to nothing": (lambda to: bothways.profile().trace(None), TypeError, "path of a file is expected"),
    "save to nothing": (lambda to: bothways.cache.save(None), TypeError, "path of a file is expected"),
    "save to a folder": (lambda to: bothways.cache.save(to), IsADirectoryError, "this is a folder"),
    "save to no folder": (lambda to: bothways.cache.save(to / "no" / "r"), FileNotFoundError, "no such folder"),
    "load nothing": (lambda to: bothways.cache.load(None), TypeError, "path of a file is expected"),
    "load what is not there": (lambda to: bothways.cache.load(to / "no"), ValueError, "No such file"),
    "load a folder": (lambda to: bothways.cache.load(to), ValueError, "Is a directory"),
    "a tensor is no list of arguments": (lambda to: bothways.testing.check(f, X), TypeError, "of one argument, [x]"),
    "a text is none either": (lambda to: bothways.testing.check(f, "ab"), TypeError, "of one argument, [x]"),
    "keywords are a mapping": (lambda to: bothways.testing.check(f, [X], 3), TypeError, "a mapping of names"),
    "too few": (lambda to: bothways.testing.check(f), TypeError, "f(x) cannot be called with these arguments: missing"),
    "too many": (lambda to: bothways.testing.check(f, [X, X]), TypeError, "too many positional"),
    "bisect, too many": (lambda to: bothways.testing.bisect(f, [X, X]), TypeError, "too many positional"),
    "bisect a tensor": (lambda to: bothways.testing.bisect(f, X), TypeError, "of one argument, [x]"),
    "a dimension in words": (lambda to: bothways.mark_dynamic(X, "0"), TypeError, "a dimension is a whole number"),
    "half a dimension": (lambda to: bothways.mark_dynamic(X, 0.5), TypeError, "a dimension is a whole number"),
    "a flag is no dimension": (lambda to: bothways.mark_static(X, True), TypeError, "a dimension is a whole number"),
    "one of several": (lambda to: bothways.mark_dynamic(X, [0, 7]), IndexError, "dimension 7 of a tensor with 1"),
    "sizes of a number": (lambda to: bothways.mark_dynamic(3, 0), TypeError, "marked, and this is an int"),
    "a module is no function": (lambda to: bothways.disable(torch.nn.ReLU()), TypeError, "not a torch.nn.modules."),
    "recorded by no backend": (lambda to: bothways.testing.RecordGraphs("nativ"), ValueError, "did you mean 'native'?"),
    "no such field": (lambda to: bothways.config.recompile_limt, AttributeError, "did you mean 'recompile_"),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_raises_at_the_call_and_leaves_nothing(name, tmp_path):
    call, kind, words = CALLS[name]
    before = bothways.config.as_dict()
    with pytest.raises(kind, match=re.escape(words)):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == [] and bothways.config.as_dict() == before
    assert "_bothways" not in " ".join(vars(X))


def test_a_tensor_is_not_taken_apart_into_arguments():
    """Three rows would be three arguments."""
    with pytest.raises(TypeError, match="list of arguments"):
        bothways.testing.check(lambda a, b, c: a + b + c, torch.ones(3, 4))
    assert bothways.testing.check(lambda a, b, c: a + b + c, tuple(torch.ones(3, 4)), backend="eager")


# Arguments of ``python -m bothways``, and what stderr says.
COMMANDS = {
    ("report",): "a program is expected",
    ("report", "-o"): "expected one argument",
    ("report", "-o", "no/r.html", "ok.py"): "no such folder to write to",
    ("report", "-o", ".", "ok.py"): "this is a folder",
    ("report", "missing.py"): "can't open file",
    ("repro",): "a program is expected",
    ("repro", "missing.py"): "can't open file",
    ("repro", "-o"): "path of a file is expected",
    ("repro", "-o", "no/r.py", "ok.py"): "no such folder to write to",
    ("cache", "empty"): "usage: python -m bothways cache",
    ("doctor", "who"): "usage: python -m bothways doctor",
}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_says_what_is_wrong_before_it_runs_a_program(arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "ok.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    try:
        status = main(list(arguments))
    except SystemExit as error:
        status = error.code
    assert status == 2 and COMMANDS[arguments] in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ok.py"]


def test_a_program_that_ends_with_a_status_of_its_own_keeps_it(tmp_path):
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    done = run_python(["-m", "bothways", "repro", "ends.py"], cwd=tmp_path)
    assert done.returncode == 3 and "the program ended with 3" in done.stderr


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"bothways {bothways.__version__}\n"
