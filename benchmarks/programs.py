"""Training scripts as people write them: plain, with torch.compile, and with bothways on aot_eager and native.

The scripts are in ``benchmarks/training``. Each is compiled in two ways: what its author would compile, a module or a
function of it (``--what model``), and the whole step, decorated (``--what step``). Each figure comes from a process of
its own, with the compilers' disk caches off and OpenMP's threads asleep while they wait. "same" says whether losses and
trained tensors are the plain script's after some steps; "calls" is how many of the plain step's operations PyTorch
still runs one by one; a step is the whole script's: data, forward, backward, optimizer. Programs run engine after
engine, in rounds, and the fastest counts. With one thread a step's time is the CPU's, which others on the machine
disturb less. "least" is the share of the plain step that would stay if all else took no time (benchmarks/least.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import training
from common import print_table, print_targets, write_results
from least import least_of
from torch.autograd.profiler import profile

PROGRAMS = sorted(module.name for module in pkgutil.iter_modules(training.__path__))
ENGINES = ("eager", "torch.compile", "aot_eager", "native")
OURS = ("aot_eager", "native")
# What is compiled, and how the tables call it.
WHAT = {"model": "what the author compiles", "step": "the whole step"}
COMPARED = 8  # steps after which the results are looked at
ROUND = 11  # steps a round: the sizes of some programs change with the step
SECONDS = 2.0  # of rounds
# What each engine finds, by script and engine.
Results = dict[str, dict[str, dict[str, Any]]]
NOISE = 1.03  # how far apart two runs of the same are on a quiet machine


def prepare_with(engine: str) -> Callable[[Any], Any]:
    if engine == "eager":
        return lambda target: target
    if engine == "torch.compile":
        import torch._inductor.config

        torch._inductor.config.fallback_random = True  # the numbers that the plain script draws
        return lambda target: torch.compile(target)
    import bothways

    return lambda target: bothways.compile(target, backend=engine)


def built(name: str, engine: str, what: str) -> training.Training:
    """A script, compiled."""
    return build_with(name, what, prepare_with(engine))


def build_with(name: str, what: str, prepare: Callable[[Any], Any]) -> training.Training:
    """A script, with what is compiled given to ``prepare``."""
    build: Callable[[Callable[[Any], Any]], training.Training] = importlib.import_module(f"training.{name}").build
    if what == "model":
        return build(prepare)
    program = build(lambda target: target)
    return program._replace(step=prepare(program.step))


def measure(name: str, engine: str, what: str) -> dict[str, Any]:
    """What one process finds."""
    warnings.simplefilter("ignore")  # that something runs plainly is what the figures show
    torch.manual_seed(0)
    (torch.ones(2, requires_grad=True) * 2).backward(torch.ones(2))  # wake up PyTorch itself: this imports, too
    program = built(name, engine, what)
    torch.manual_seed(1)
    started = time.perf_counter()
    losses = [float(program.step(0))]
    first = time.perf_counter() - started
    losses += [float(program.step(n)) for n in range(1, COMPARED)]
    trained = [float(tensor.detach().double().norm()) for tensor in program.trained]
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    at, best, spent = COMPARED, float("inf"), 0.0
    while at < COMPARED + 3 * ROUND or spent < SECONDS:
        started = clock()
        for n in range(at, at + ROUND):
            program.step(n)
        took = clock() - started
        at, spent = at + ROUND, spent + took
        best = min(best, took / ROUND)
    least = {}
    if engine == "eager":
        least = {way: least_of(partial(build_with, name, way), best * 1e3) for way in WHAT}
    return {
        "least": least, "losses": losses, "trained": trained, "first_s": first, "step_ms": best * 1e3,
        "calls": calls_in(lambda: program.step(0)), "graphs": graphs_of(engine),
    }  # fmt: skip


def calls_in(step: Callable[[], Any]) -> int:
    """Operations that PyTorch's dispatcher was asked for, those that operations call themselves aside."""
    with profile() as recorded:
        step()
    events = [event for event in recorded.function_events if event.name.startswith("aten::")]
    return sum(event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::") for event in events)


def graphs_of(engine: str) -> int:
    if engine == "torch.compile":
        import torch._dynamo.utils

        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    if engine in OURS:
        from bothways.record.counters import counters

        return counters["stats"]["unique_graphs"]
    return 0


def run(name: str, engine: str, what: str, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            OMP_NUM_THREADS=str(threads),
            OMP_WAIT_POLICY="PASSIVE",
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
            BOTHWAYS_CACHE_DIR=f"{folder}/bothways",
        )
        command = [sys.executable, __file__, "--program", name, "--engine", engine, "--what", what, "--alone"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} with {engine}, {what}, failed:\n{done.stderr[-1500:]}", file=sys.stderr)
        return {"failed": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def best_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    failed = next((result for result in results if "failed" in result), None)
    if failed is not None:
        return failed
    fastest = {figure: min(result[figure] for result in results) for figure in ("first_s", "step_ms")}
    least = {way: min(result["least"][way] for result in results) for way in results[0]["least"]}
    return {**results[0], **fastest, "least": least}


def is_same(found: dict[str, Any], eager: dict[str, Any]) -> bool:
    if "failed" in found:
        return False
    pairs = [*zip(found["losses"], eager["losses"], strict=True), *zip(found["trained"], eager["trained"], strict=True)]
    return all(abs(own - plain) <= 1e-4 * max(1.0, abs(plain)) for own, plain in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--what", choices=WHAT, action="append")
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="measure one engine in this process and print JSON")
    arguments = parser.parse_args()
    ways = arguments.what or list(WHAT)
    if arguments.alone:
        print(json.dumps(measure(arguments.program[0], arguments.engine[0], ways[0])))
        return
    compilers = [engine for engine in arguments.engine or ENGINES if engine != "eager"]
    results: dict[str, dict[str, Results]] = {what: {} for what in ways}
    for threads in arguments.threads or (1, 2):
        for what in ways:
            results[what][f"{threads} threads"] = {}
        for name in arguments.program or PROGRAMS:
            found = compared(name, compilers, ways, threads, arguments.rounds)
            for what in ways:
                results[what][f"{threads} threads"][name] = found[what]
            shares = {f"{engine}, {what}": share(found[what], engine) for what in ways for engine in compilers}
            print(f"{name}: " + "; ".join(f"{key} {value}" for key, value in shares.items()), file=sys.stderr)
            write_results("programs", results)  # what was measured stays if the rest is not
        for what in ways:
            of_threads = f"{threads} threads" if threads > 1 else "one thread"
            report(what, of_threads, results[what][f"{threads} threads"], compilers)


def compared(
    name: str, compilers: list[str], ways: list[str], threads: int, rounds: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """What the compilers make of a script, for each way to compile it, next to the plain script."""
    runs = [("eager", ways[0]), *((engine, what) for engine in compilers for what in ways)]
    found = [{(engine, what): run(name, engine, what, threads) for engine, what in runs} for _ in range(rounds)]
    best = {key: best_of([each[key] for each in found]) for key in runs}
    plain = best["eager", ways[0]]
    return {what: {"eager": plain, **{engine: best[engine, what] for engine in compilers}} for what in ways}


def share(found: dict[str, dict[str, Any]], engine: str) -> str:
    """A step's time as a share of the plain script's, in words where there is none."""
    own = found[engine]
    return "failed" if "failed" in own else f"{own['step_ms'] / found['eager']['step_ms']:.2f}"


def report(what: str, of_threads: str, results: Results, compilers: list[str]) -> None:
    title = f"{WHAT[what]} compiled, {of_threads}"
    header = ["", "eager ms", "least"]
    for engine in compilers:
        header += [engine, "same", "graphs", "calls", "first s"]
    rows: list[list[object]] = []
    ratios: dict[str, list[float]] = {engine: [] for engine in compilers}
    differing = []
    for name, found in results.items():
        eager = found["eager"]
        row: list[object] = [name, eager["step_ms"], eager["least"][what]]
        for engine in compilers:
            own = found[engine]
            if "failed" in own:
                row += ["failed", "no", "", "", ""]
                continue
            ratios[engine].append(own["step_ms"] / eager["step_ms"])
            same = is_same(own, eager)
            if not same and engine in OURS:
                differing.append(f"{name} on {engine}")
            calls = own["calls"] / max(1, eager["calls"])
            row += [ratios[engine][-1], "yes" if same else "no", str(own["graphs"]), calls, own["first_s"]]
        rows.append(row)
    print_table(f"training scripts, {title}: a step's time as a share of the plain script's", header, rows)
    medians = {engine: statistics.median(values) for engine, values in ratios.items() if values}
    print("  medians: " + ", ".join(f"{engine} {median:.2f}" for engine, median in medians.items()))
    targets = {"every script computes what it computes plainly": not differing}
    if "native" in medians:
        targets["the median on native is at most 0.75"] = medians["native"] <= 0.75
        targets["no script is slower on native"] = max(ratios["native"]) <= NOISE
    if "aot_eager" in medians:
        targets["none is over 1.05 on aot_eager"] = max(ratios["aot_eager"]) <= 1.05 * NOISE
    print_targets(targets)


if __name__ == "__main__":
    main()
