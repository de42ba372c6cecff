"""``python -m bothways`` runs a program as ``python`` would, with the drop-in installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pythons import run_python

from bothways.__main__ import main

ROOT = Path(__file__).parent.parent.parent

# Prints what a program can see of how it was started, and whether the drop-in is there.
PROGRAM = """
import json, pickle, sys
import torch

class Point:
    pass

def double(x):
    return x * 2

print(json.dumps({
    "name": __name__,
    "file": globals().get("__file__"),
    "argv": sys.argv,
    "path": sys.path[0],
    "ours": torch.compile.__module__.startswith("bothways."),
    "compiled": torch.compile(double, backend="eager")(torch.tensor(21)).item(),
    "pickles": type(pickle.loads(pickle.dumps(Point()))) is Point,
}))
"""


ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python(["-m", "bothways", *arguments], cwd=cwd, env=ENVIRONMENT)


def run_by_its_own(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """By a Python that starts for it, and loads PyTorch."""
    command = [sys.executable, "-m", "bothways", *arguments]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)


def seen_by_program(*arguments: str, cwd: Path, run=run) -> dict[str, object]:
    finished = run(*arguments, cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_a_script_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "program.py").write_text(PROGRAM)
    assert seen_by_program("place/program.py", "-m", "x", cwd=tmp_path, run=run_by_its_own) == {
        "name": "__main__",
        "file": str(tmp_path / "place" / "program.py"),
        "argv": ["place/program.py", "-m", "x"],
        "path": str(tmp_path / "place"),
        "ours": True,
        "compiled": 42,
        "pickles": True,
    }


def test_a_module_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    seen = seen_by_program("-m", "program", "a", cwd=tmp_path)
    assert seen["argv"] == [str(tmp_path / "program.py"), "a"]
    assert (seen["name"], seen["path"]) == ("__main__", str(tmp_path))
    assert seen["ours"] and seen["pickles"]


def test_a_command_runs_as_python_would_run_it(tmp_path):
    seen = seen_by_program("-c", PROGRAM, "a", cwd=tmp_path)
    assert (seen["argv"], seen["path"], seen["file"]) == (["-c", "a"], "", None)
    assert seen["ours"] and seen["pickles"]


def test_a_traceback_starts_in_the_program(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("def f():\n    raise KeyError('gone')\n\nf()\n")
    finished = run("program.py", cwd=tmp_path)
    assert finished.returncode == 1
    lines = finished.stderr.splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{script}", line 4, in <module>']
    assert lines[-1] == "KeyError: 'gone'"


def test_the_exit_status_is_the_programs(tmp_path):
    assert run("-c", "raise SystemExit(7)", cwd=tmp_path).returncode == 7


@pytest.mark.parametrize(
    "arguments, status, text",
    [
        ([], 2, "usage: python -m bothways script.py"),
        (["--help"], 0, "usage: python -m bothways script.py"),
        (["-m"], 2, "argument expected for the -m option"),
        (["--fast", "script.py"], 2, "unknown option --fast"),
    ],
)
def test_a_command_line_without_a_program_says_how_it_is_used(arguments, status, text, capsys):
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert text in printed.out + printed.err


def test_a_script_that_is_not_there(tmp_path):
    finished = run("nowhere.py", cwd=tmp_path)
    assert finished.returncode == 2
    assert "can't open file 'nowhere.py': No such file or directory" in finished.stderr
    assert "Traceback" not in finished.stderr
