"""Debuggers inside compiled functions: a person sees the user's own frame, with its variables and its line."""

import inspect
import io
import pdb
import sys
import traceback

import pytest
import torch
from agreeing import BACKENDS, agree
from pythons import run_python

import bothways
from bothways.testing import difference

SEEN = []


def note_frame(*args, **kwargs):
    """A hook in the place of pdb: notes the frame that called it, and the user's frames around that."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == __file__ and "f_of_user" in frame.f_locals:
            SEEN.append((frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals), dict(frame.f_locals)))
        frame = frame.f_back


@pytest.fixture(autouse=True)
def hook(monkeypatch):
    monkeypatch.setattr(sys, "breakpointhook", note_frame)
    SEEN.clear()


def frames_agree(program, backend):
    def observe(function, size):
        SEEN.clear()
        result = function(torch.arange(float(size)), 7)
        assert SEEN
        return {"result": result, "frames": list(SEEN)}

    agree(program, observe, 3, 3, 5, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_breakpoint_shows_all_variables_those_that_are_never_read_too(backend):
    def program(x, unread):
        f_of_user = x + 1
        b = f_of_user * 2
        breakpoint()
        return b.sum()

    frames_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_frames_around_that_of_the_breakpoint_are_the_users_too(backend):
    def inner(x, f_of_user):
        tripled = x * 3
        breakpoint()
        return tripled

    def program(x, unread):
        f_of_user = x + 1
        return inner(f_of_user, 1) + 1

    frames_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_breakpoint_in_a_loop_and_in_a_handler(backend):
    def program(x, unread):
        f_of_user = x
        for index in range(2):
            try:
                f_of_user = f_of_user * 2
                if index:
                    raise ValueError("odd")
            except ValueError:
                breakpoint()
        breakpoint()
        return f_of_user

    frames_agree(program, backend)


def set_trace():
    """Named as the functions of debuggers are."""
    note_frame()


@pytest.mark.parametrize("backend", BACKENDS)
def test_set_trace_of_a_debugger_of_ones_own(backend):
    def program(x, unread):
        f_of_user = x + 1
        set_trace()
        return f_of_user * 2

    frames_agree(program, backend)


def test_pdb_shows_the_line_and_the_variables():
    def program(x, unread, debugger):
        a = x + 1
        b = a * 2
        debugger.set_trace()
        return b.sum()

    commands = "p sorted(locals())\np (b.tolist(), unread)\nc\n"
    sides = []
    for function in (program, bothways.compile(program, backend="eager")):
        texts = []
        for _ in range(2):
            output = io.StringIO()
            debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=output, nosigint=True, readrc=False)
            before = sys.gettrace()
            function(torch.ones(2), 5, debugger)
            sys.settrace(before)
            texts.append(output.getvalue())
        sides.append(texts)
    assert sides[0] == sides[1]
    assert "['a', 'b', 'debugger', 'unread', 'x']" in sides[1][0] and "([4.0, 4.0], 5)" in sides[1][0]


SCRIPT = """
import pdb, torch, bothways

def program(x, unread):
    a = x + 1
    pdb.set_trace()
    return a * 2

for function in (program, bothways.compile(program, backend="eager")):
    for _ in range(2):
        print(function(torch.ones(2), 5).tolist())
"""


def test_pdb_set_trace_in_a_program_outside_of_tests(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    commands = "p sorted(locals())\nlist\nc\n" * 4
    ran = run_python([script], input=commands)
    assert ran.returncode == 0, ran.stderr
    plain, hit, *compiled = ran.stdout.split("[4.0, 4.0]")[:4]
    assert "['a', 'unread', 'x']" in plain and "->" in plain
    assert [text.strip() for text in (hit, *compiled)] == [plain.strip()] * 3


def test_under_fullgraph_a_debugger_is_an_error_that_says_so():
    def program(x):
        breakpoint()
        return x + 1

    with pytest.raises(bothways.errors.Unsupported, match=r"\[debugger\]"):
        bothways.compile(program, backend="eager", fullgraph=True)(torch.ones(2))


def names_of_caller():
    return sorted(inspect.currentframe().f_back.f_locals)




def test_functions_that_look_at_the_frame_they_are_called_from():
    def program(x, unread):
        a = x + 1
        names = names_of_caller()
        frame = inspect.currentframe()
        stack = inspect.stack()[0]
        summary = traceback.extract_stack(limit=1)[0]
        found = names, sorted(frame.f_locals), sorted(stack.frame.f_locals), stack.lineno, summary.lineno, summary.name
        del frame, stack
        return a * 2, found

    compiled = bothways.compile(program, backend="eager")
    for _ in range(2):
        assert difference(program(torch.ones(2), 1), compiled(torch.ones(2), 1)) is None
