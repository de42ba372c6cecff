"""The collector may run while guards are checked or gradients looked at; what its finalizers let go of is not used.

In processes of their own: memory that is used after it was given back ends one, or does not.
"""

import subprocess
import sys

import pytest

TENSORS = """
import gc, torch, bothways

class Holder:
    pass

kept = Holder()
kept.tensors = [torch.full((3,), float(number)) for number in range(60)]

def program(x):
    for tensor in kept.tensors:
        tensor.mul_(0.5).add_(x)
    return kept.tensors[0].sum()

before = lambda: None
compiled, x = bothways.compile(program), torch.ones(3)
for _ in range(8):
    compiled(x)

class LetsGo:
    def __init__(self):
        self.own = self
    def __del__(self):
        for place in range(10, 50):
            kept.tensors[place] = torch.full((3,), 100.0)
        self.others = [str(number) * 50 for number in range(2000)]
        log.append("let go")
"""
GRADIENTS = """
import gc, sys, torch, bothways
sys.path.insert(0, "tests")
from replaying import graphs

model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(18)))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()

def before():  # fresh gradients, whose dictionaries are not made yet
    model.zero_grad()
    compiled(x)

around = graphs()
around.__enter__()
compiled, x = bothways.compile(step), torch.ones(3, 4)
for _ in range(12):
    compiled(x)

class LetsGo:
    def __init__(self):
        self.own = self
    def __del__(self):
        for parameter in model.parameters():
            parameter.grad = None
        self.others = [torch.ones(4, 4) for _ in range(50)]
        log.append("let go")
"""
# A collection that begins a little later each time, somewhere in a call.
CALLS = """
log = []
for later in range(0, 60, 3):
    for _ in range(4):
        compiled(x)
    before(); gc.collect(); gc.disable()
    LetsGo()
    others = [[] for _ in range(10)]
    gc.set_threshold(len(others) + 1 + later); gc.enable()
    compiled(x)
    gc.set_threshold(700)
assert log
"""


@pytest.mark.parametrize("program", [TENSORS, GRADIENTS], ids=["tensors", "gradients"])
def test_what_a_finalizer_lets_go_of_in_the_middle(program):
    done = subprocess.run([sys.executable, "-c", program + CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
