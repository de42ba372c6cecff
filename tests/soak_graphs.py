"""A soak of replays: random models, random steps, and everything that has ever gone wrong with CUDA graphs in between.

    python tests/soak_graphs.py --programs 1000 --steps 20 --seed 0
    python tests/soak_graphs.py --processes 8 --seconds 240

Each program runs plainly and compiled, and all that can be seen is compared: results, those of long ago too, gradients,
parameters, buffers, optimizer state, random numbers. On a GPU graphs are real; without one they fill their memory with
NaN. A difference is printed with the seed that shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import math
import multiprocessing
import random
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import torch
from replaying import DEVICE, graphs
from torch import nn

import bothways

LAYERS = {
    "linear": lambda size: nn.Linear(size, size),
    "norm": lambda size: nn.LayerNorm(size),
    "batch norm": lambda size: nn.BatchNorm1d(size),
    "gelu": lambda size: nn.GELU(),
    "tanh": lambda size: nn.Tanh(),
    "dropout": lambda size: nn.Dropout(0.3),
    "softmax": lambda size: nn.Softmax(-1),
}
# A large eps: where a gradient is zero but for rounding, nothing must depend on its sign.
OPTIMIZERS = (
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-2, fused=True),
    lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-2, capturable=DEVICE == "cuda"),
)


class Side:
    """One of the two that are compared: plain, or compiled."""

    def __init__(self, model, make_optimizer, compiled):
        self.model, self.optimizer, self.held, self.compiled = model, make_optimizer(model.parameters()), [], compiled
        self.call = bothways.compile(model) if compiled else model
        self.step = bothways.compile(self.whole_step) if compiled else self.whole_step
        self.waiting = []

    def whole_step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self):
        tensors = [*self.model.parameters(), *self.model.buffers()]
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        state = [value for one in self.optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
        versions = torch.tensor([gradient._version for gradient in gradients])
        return [versions, *(tensor.detach().clone() for tensor in (*tensors, *gradients, *state))]


def refuse(gradient):
    raise ValueError("a hook")


# What happens in a step: each takes a side, the data, and a random number generator that both sides see the same of.


def forward_and_backward(side, x, chance):
    result = side.call(x)
    result.square().mean().backward()
    if chance.random() < 0.3:
        side.held.append(result)
    if chance.random() < 0.6:
        side.optimizer.step()
        side.optimizer.zero_grad(set_to_none=chance.random() < 0.7)


def without_gradients(side, x, chance):
    with torch.no_grad():
        side.held.append(side.call(x))


def whole_step(side, x, chance):
    side.held.append(side.step(x))
    if chance.random() < 0.3:
        side.held += [parameter.grad for parameter in side.model.parameters() if parameter.grad is not None]


def changed_gradients(side, x, chance):
    """What a step leaves is the caller's to change, and to hold for as long as it likes."""
    side.step(x)
    for parameter in side.model.parameters():
        if chance.random() < 0.5:
            parameter.grad.mul_(0.5)
        if chance.random() < 0.1:
            side.held.append(parameter.grad[:1])


def two_forwards(side, x, chance):
    losses = [side.call(x + number).square().mean() for number in range(2)]
    if chance.random() < 0.5:
        losses.reverse()
    for loss in losses:
        loss.backward()


def backward_later(side, x, chance):
    side.waiting.append(side.call(x).square().mean())
    if len(side.waiting) > 2 and chance.random() < 0.7:
        side.waiting.pop(chance.randrange(len(side.waiting))).backward()


def skipped_backward(side, x, chance):
    side.held.append(side.call(x).detach())


def retained(side, x, chance):
    loss = side.call(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def hook_that_raises(side, x, chance):
    result = side.call(x)
    result.register_hook(refuse)
    with contextlib.suppress(ValueError):
        result.square().mean().backward()


def other_data(side, x, chance):
    for parameter in side.model.parameters():
        if chance.random() < 0.5:
            parameter.data = parameter.data.clone() * 0.9
    without_gradients(side, x, chance)


def loaded(side, x, chance):
    state = {name: value.clone() for name, value in side.model.state_dict().items()}
    side.model.load_state_dict(state, assign=chance.random() < 0.3)
    forward_and_backward(side, x, chance)


def another_rate(side, x, chance):
    side.optimizer.param_groups[0]["lr"] = chance.choice([1e-2, 3.3e-3, chance.random() * 0.01])
    whole_step(side, x, chance)


def evaluated(side, x, chance):
    side.model.eval()
    without_gradients(side, x, chance)
    side.model.train()


def on_another_stream(side, x, chance):
    if DEVICE != "cuda":
        return without_gradients(side, x, chance)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        result = side.call(x)
    torch.cuda.current_stream().wait_stream(stream)
    result.record_stream(torch.cuda.current_stream())
    side.held.append(result)
    return None


def in_another_thread(side, x, chance):
    def call():
        with torch.no_grad():
            side.held.append(side.call(x))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


ACTIONS = (
    forward_and_backward, forward_and_backward, without_gradients, whole_step, whole_step, changed_gradients,
    two_forwards, backward_later, skipped_backward, retained, hook_that_raises, other_data, loaded, another_rate,
    evaluated, on_another_stream, in_another_thread,
)  # fmt: skip


def program(seed, steps):
    """Run one program both ways; what differs, if anything does, and how many calls were replayed."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    size, depth = chance.choice([4, 8, 16]), chance.randrange(2, 6)
    layers = [nn.Linear(size, size), *(LAYERS[chance.choice(list(LAYERS))](size) for _ in range(depth))]
    model = nn.Sequential(*layers).to(DEVICE, torch.float64)  # rounding must not look like a difference
    make = chance.choice(OPTIMIZERS)
    sides = [Side(model, make, False), Side(copy.deepcopy(model), make, True)]
    favourites = chance.sample(ACTIONS, 3)
    sizes = [4, 4, 4, chance.choice([3, 6])]
    x = torch.randn(6, size, device=DEVICE, dtype=torch.float64)
    for step in range(steps):
        action = chance.choice(favourites if chance.random() < 0.8 else ACTIONS)
        rows = chance.choice(sizes)
        if chance.random() < 0.5:
            x = torch.randn(6, size, device=DEVICE, dtype=torch.float64)
        number = chance.random()
        states = []
        for side in sides:
            torch.manual_seed(step)
            raised = torch.zeros(())
            try:
                action(side, x[:rows].clone(), random.Random(number))
            except RuntimeError as error:  # what a backward needs was changed, in eager as well
                if "modified by an inplace operation" not in str(error):
                    raise
                raised += 1
            states.append((side.state(), side.held, [raised, torch.rand(2, device=DEVICE)]))
        problem = difference(*states)
        if problem:
            return f"seed {seed}, step {step}, {action.__name__}: {problem}", 0
    found = [one for call in (sides[1].call, sides[1].step) for c in bothways.history(call) for one in c.replays]
    return "", sum(one.calls for one in found)


def difference(one, other):
    for name, theirs, ours in zip(("state", "held", "random numbers"), one, other, strict=True):
        try:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        except AssertionError as error:
            return f"{name}: {str(error).splitlines()[0]} {str(error).splitlines()[-1]}"
    return ""


def soak(seeds, steps, seconds):
    """Run programs until there are no more, or no more time; how many ran, how many calls were replayed, and what
    differed."""
    ends = time.monotonic() + seconds
    programs, replays, problems = 0, 0, []
    with graphs(), bothways.config.patch(kernels_for_small_graphs=True):
        for seed in seeds:
            if time.monotonic() > ends:
                break
            problem, count = program(seed, steps)
            programs, replays = programs + 1, replays + count
            if problem:
                problems.append(problem)
                print(problem, flush=True)
            bothways.reset()
            if seed % 20 == 0:
                gc.collect()
    return programs, replays, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no program after so long")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.programs)
    parts = [seeds[number :: arguments.processes] for number in range(arguments.processes)]
    if len(parts) == 1:
        found = [soak(seeds, arguments.steps, arguments.seconds)]
    else:
        with ProcessPoolExecutor(len(parts), multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(soak, part, arguments.steps, arguments.seconds) for part in parts]
            found = [one.result() for one in waiting]
    programs, replays = (sum(one[place] for one in found) for place in range(2))
    problems = [problem for one in found for problem in one[2]]
    print(f"{programs} programs, {replays} calls replayed, {len(problems)} differences")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
