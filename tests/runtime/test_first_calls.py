"""The first compiled call of a process, in whatever mode: what is found out once is found out rightly."""

from pythons import run_python

PROGRAM = """
import os
import torch
import bothways
from bothways.calls.call_library import word_library

def program(x, w):
    x.mul_(2)
    return x * w + 1

MODES = torch.inference_mode(), torch.no_grad()

def first_calls(mode):
    compiled, shown = bothways.compile(program), []
    for function in (program, compiled, compiled):
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        with mode:
            y = function(x, w)
        shown.append((y.tolist(), y.dtype, y.requires_grad, x._version))
    assert shown[0] == shown[1] == shown[2], shown
    assert word_library() is not None

for mode in MODES:
    child = os.fork()
    if child == 0:
        first_calls(mode)
        break
    assert os.waitpid(child, 0)[1] == 0, mode
"""


def test_the_first_call_of_a_process_may_be_made_in_any_mode():
    run_python(["-c", PROGRAM], check=True)
