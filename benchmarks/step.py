"""A training step, forward to update: eager, the model compiled, the model and the optimizer, and the whole step.

For each model and each way: how long the first step takes, CPU time of a later one, memory at the peak, and how many
ATen operations are called and how many generated kernels run. The ways take turns in one process on one thread, so that
what else the machine does burdens them alike; each trains a model of its own, and parameters are compared at the end.
``--engines`` and ``--models`` choose; torch.compile takes long to start.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from common import print_table, print_targets, write_results
from torch import Tensor, nn
from torch.autograd.profiler import profile, record_function
from workloads import Cnn, Gpt

import bothways
from bothways.testing import difference

Compile = Callable[[Any], Any]
Step = Callable[[], Any]


@dataclass(frozen=True)
class Engine:
    """What each part of a step becomes."""

    model: Compile = lambda part: part
    update: Compile = lambda part: part
    step: Compile = lambda part: part


ENGINES = {
    "eager": Engine(),
    "torch.compile(model)": Engine(model=torch.compile),
    "torch.compile(model, update)": Engine(model=torch.compile, update=torch.compile),
    "bothways(model)": Engine(model=bothways.compile),
    "bothways(step)": Engine(step=lambda step: bothways.compile(step)),
}


@dataclass
class Training:
    """A step, and what it trains."""

    step: Step
    trained: list[Tensor]


def mlp(engine: Engine) -> Training:
    """Four layers of 256, SGD with momentum, batch 64."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    run, optimizer = engine.model(model), torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    update = engine.update(optimizer.step)
    x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        update()
        return loss.detach()

    return Training(step, list(model.parameters()))


def gpt(engine: Engine) -> Training:
    """Two blocks of width 128, 64 tokens, batch 4, AdamW and clipping."""
    model = Gpt(layers=2, length=64)
    run, optimizer = engine.model(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    update, parameters = engine.update(optimizer.step), list(model.parameters())
    tokens = torch.randint(0, 256, (4, 64))
    targets = tokens.roll(-1, 1)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = run(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        update()
        return loss.detach()

    return Training(step, parameters)


def cnn(engine: Engine) -> Training:
    """Three convolutions with BatchNorm, SGD with momentum, batch 8 of 32x32."""
    model = Cnn()
    run, optimizer = engine.model(model), torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)
    update = engine.update(optimizer.step)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = run(x, y)
        loss.backward()
        update()
        return loss.detach()

    return Training(step, [*model.parameters(), *model.buffers()])


def gan(engine: Engine) -> Training:
    """A generator and a critic of width 128 with an optimizer each, batch 128."""
    generator = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    critic = nn.Sequential(
        nn.Linear(2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)
    )
    make, judge = engine.model(generator), engine.model(critic)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
    update_generator, update_critic = engine.update(of_generator.step), engine.update(of_critic.step)
    real, noise = torch.randn(128, 2), torch.randn(128, 8)

    def step() -> Tensor:
        fake = make(noise)
        of_critic.zero_grad()
        loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
        loss.backward()
        update_critic()
        of_generator.zero_grad()
        fooled = F.softplus(-judge(fake)).mean()
        fooled.backward()
        update_generator()
        return loss.detach() + fooled.detach()

    return Training(step, [*generator.parameters(), *critic.parameters()])


class Autoencoder(nn.Module):
    def __init__(self, width: int = 256, code: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.SiLU(), nn.Linear(width, 256))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread


def vae(engine: Engine) -> Training:
    """A variational autoencoder of width 256, Adam, batch 64."""
    model = Autoencoder()
    run, optimizer = engine.model(model), torch.optim.Adam(model.parameters(), lr=1e-3)
    update = engine.update(optimizer.step)
    x = torch.rand(64, 256)

    def step() -> Tensor:
        optimizer.zero_grad()
        restored, mean, spread = run(x)
        restoring = F.binary_cross_entropy_with_logits(restored, x, reduction="sum") / len(x)
        loss = restoring - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum() / len(x)
        loss.backward()
        update()
        return loss.detach()

    return Training(step, list(model.parameters()))


MODELS = {"mlp": mlp, "gpt": gpt, "cnn": cnn, "gan": gan, "vae": vae}
WARMING = 3  # steps after which everything is compiled: the first makes an optimizer's state


@dataclass
class Run:
    """One way to train one model, and what was measured."""

    training: Training
    step: Step
    kernels: Callable[[], int] = lambda: 0
    times: list[float] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)


def started(model: str, name: str) -> Run:
    """A training whose programs are compiled: its first steps have run."""
    engine = ENGINES[name]
    torch.manual_seed(0)
    made: list[Any] = []

    def kept(compile: Compile) -> Compile:
        def compiled(part: Any) -> Any:
            made.append(compile(part))
            return made[-1]

        return compiled

    if name != "eager":
        engine = Engine(kept(engine.model), kept(engine.update), kept(engine.step))
    counted = kernels_before = 0
    if "torch.compile" in name:
        from torch._inductor import metrics

        kernels_before = metrics.generated_kernel_count
    training = MODELS[model](engine)
    run = Run(training, engine.step(training.step))
    seconds = []
    for _ in range(WARMING):
        torch.manual_seed(1)
        start = time.perf_counter()
        run.step()
        seconds.append(time.perf_counter() - start)
    if "torch.compile" in name:
        counted = metrics.generated_kernel_count - kernels_before
    elif "bothways" in name:
        counted = sum(map(kernels_of, made))
    run.found = {"first_s": seconds[0], "compiling_s": sum(seconds) - 2 * seconds[-1], "kernels": counted}
    return run


def kernels_of(function: Any) -> int:
    """How many kernels the programs of a compiled function have."""
    try:
        outcomes = bothways.explain(function).outcomes
    except TypeError:  # a part that this way leaves alone
        return 0
    return sum(piece.kernels for outcome in outcomes for piece in outcome.pieces)


def observed(step: Step) -> dict[str, float]:
    """The ATen operations that a step calls, not those inside of another, and its memory at the peak.

    Of memory that was there before, the profiler does not see that it is freed: it watches a step before that one, too.
    """
    gc.collect()
    with profile(use_cpu=True, profile_memory=True) as profiler:
        step()
        with record_function("begin"):
            pass
        step()
    events = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
    held = peak = calls = 0
    until: dict[int, int] = {}  # the end of the operation that is under way, by thread
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
        elif event.name() == "begin":
            held = peak = calls = 0
        elif event.name().startswith("aten::"):
            thread = event.start_thread_id()
            if event.start_ns() >= until.get(thread, 0):
                calls += 1
                until[thread] = event.start_ns() + event.duration_ns()
    return {"aten_calls": calls, "peak_kb": peak / 1e3}


def measure(model: str, engines: Sequence[str], rounds: int, least: float) -> dict[str, dict[str, Any]]:
    """What each way needs for a step of one model."""
    runs: dict[str, Run] = {}
    for name in engines:
        print(f"{model}: {name} ...", flush=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runs[name] = started(model, name)
        except Exception as error:
            print(f"  does not work here: {traceback.format_exception_only(error)[-1].strip()[:150]}", flush=True)
    eager = runs["eager"]
    for name, run in runs.items():
        gap = difference(copy.deepcopy(eager.training.trained), run.training.trained, tol=1e-2)
        if gap is not None:
            raise SystemExit(f"{model}: {name} trains otherwise than eager: {gap}")
    repetitions = max(1, int(least / timed(eager.step, 3)))
    for _ in range(rounds):
        for run in runs.values():
            run.times.append(timed(run.step, repetitions))
    for run in runs.values():
        run.found |= {"step_ms": min(run.times) * 1e3, **observed(run.step)}
    return {name: run.found for name, run in runs.items()}


def timed(step: Step, repetitions: int) -> float:
    start = time.process_time()
    for _ in range(repetitions):
        step()
    return (time.process_time() - start) / repetitions


def shown(model: str, found: dict[str, dict[str, Any]]) -> None:
    eager = found["eager"]
    rows = [
        [name, row["first_s"], row["step_ms"], row["step_ms"] / eager["step_ms"], row["peak_kb"],
         row["peak_kb"] / eager["peak_kb"], str(row["aten_calls"]), str(row["kernels"])]
        for name, row in found.items()
    ]  # fmt: skip
    header = ["engine", "first step s", "step ms", "of eager's", "peak kB", "of eager's", "ATen calls", "kernels"]
    print_table(f"{model}: {(MODELS[model].__doc__ or '').strip()}", header, rows)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES), help="eager is always measured")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--least", type=float, default=0.05, help="seconds for each way in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engines = ["eager", *(name for name in options.engines if name != "eager")]
    results: dict[str, Any] = {}
    targets: dict[str, bool] = {}
    for model in options.models:
        results[model] = found = measure(model, engines, options.rounds, options.least)
        shown(model, found)
        ours = found.get("bothways(step)")
        if ours is not None:
            others = [row["step_ms"] for name, row in found.items() if name != "bothways(step)"]
            targets[f"{model}: the whole step is as fast as the best other way"] = ours["step_ms"] <= 1.02 * min(others)
            targets[f"{model}: its peak is at most eager's"] = ours["peak_kb"] <= found["eager"]["peak_kb"]
        write_results("step", {"models": results, "targets": targets})
        bothways.reset()
        torch.compiler.reset()
    print_targets(targets)


if __name__ == "__main__":
    main()
