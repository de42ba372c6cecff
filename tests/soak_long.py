"""Thousands of generated programs, or training steps, plain and compiled, on as many processes as there is room for.

    python tests/soak_long.py programs --seed 1000 --count 5000 --processes 2 --seconds 3600

Each goes one of the ways, by its seed. A process that dies or hangs is a difference like any other, and the run goes on
without it. Ends after the programs or the seconds, says how many ran, and writes each program that differs to a file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

LIMIT = 300  # seconds for one program: most take two
TOLD_EVERY = 250  # programs, so that a run which is cut off says how far it came


def programs(seed):
    import soak_checking
    import soaking
    from reliability import test_soak

    return soaking.program(seed, test_soak.features_of(seed)), soak_checking


def steps(seed):
    import soak_training
    from reliability import test_soak_steps

    return test_soak_steps.program(seed), soak_training


def tensors(seed):
    import soak_tensors
    import soak_tensors_checking

    return soak_tensors.program(seed), soak_tensors_checking


def statements(seed):
    import soak_statements
    import soak_statements_checking

    return soak_statements.program(seed), soak_statements_checking


def calls(seed):
    import soak_calls
    import soak_calls_checking

    return soak_calls.program(seed), soak_calls_checking


KINDS = {"programs": programs, "steps": steps, "tensors": tensors, "statements": statements, "calls": calls}


def work(kind):
    """Run the seeds that come in, a line each; tell what differs, a line each."""
    import soak_ways
    import torch

    torch.set_num_threads(1)
    soak_ways.few_collections()
    for line in sys.stdin:
        seed = int(line)
        way = soak_ways.in_turn(seed)
        source, problem = None, None
        try:
            source, checking = KINDS[kind](seed)
            problem = checking.disagreement(source, way, checking.plainly(source))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps({"seed": seed, "way": str(way), "problem": problem, "source": source}), flush=True)


class Worker:
    """A process that runs one program after the other, and another one in its place where it ends too early."""

    def __init__(self, kind):
        self.kind = kind
        self.process = None

    def run(self, seed):
        if self.process is None:
            command = [sys.executable, __file__, self.kind, "--worker"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        answered, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if answered else ""
        if line:
            return json.loads(line)
        ending = "ended" if answered else f"gave no answer in {LIMIT} seconds"
        self.stop()
        return {"seed": seed, "way": "?", "problem": f"the process {ending}", "source": None}

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def soak(arguments):
    """All programs in turn; what differs."""
    seeds = itertools.count(arguments.seed)
    until = time.monotonic() + arguments.seconds
    lock, ways, differences = threading.Lock(), Counter(), []

    def run_some():
        worker = Worker(arguments.kind)
        while time.monotonic() < until:
            with lock:
                seed = next(seeds)
            if seed >= arguments.seed + arguments.count:
                break
            outcome = worker.run(seed)
            with lock:
                ways[outcome["way"]] += 1
                if outcome["problem"]:
                    differences.append(outcome)
                    told(outcome, arguments)
                if ways.total() % TOLD_EVERY == 0:
                    print(f"{arguments.kind}: {ways.total()} ran so far, {len(differences)} differ", flush=True)
        worker.stop()

    threads = [threading.Thread(target=run_some) for _ in range(arguments.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ways, differences


def told(outcome, arguments):
    first = outcome["problem"].splitlines()[0][:200]
    print(f"{arguments.kind} seed {outcome['seed']}, {outcome['way']}: {first}", flush=True)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        text = f"# seed {outcome['seed']}, {outcome['way']}\n{outcome['source']}\n\n'''\n{outcome['problem']}\n'''\n"
        (arguments.out / f"{arguments.kind}-{outcome['seed']}.txt").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.kind)
    ways, differences = soak(arguments)
    for way, count in sorted(ways.items()):
        print(f"  {count:5} {way}")
    seeds = sorted(one["seed"] for one in differences)
    print(f"{arguments.kind}: {sum(ways.values())} ran, {len(seeds)} differ: {seeds}")
    return sys.exit(bool(differences))


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    main()
