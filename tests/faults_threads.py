"""Threads that call and compile while others forget everything and change the stance: for as many seconds as one likes.

``python tests/faults_threads.py 600`` runs it for ten minutes; the suite runs it for a few seconds.
"""

import random
import sys
import threading
import time

import torch

import bothways

STANCES = ("default", "eager_on_recompile", "force_eager", "default")


def branching(x, n):
    y = torch.sin(x * n) if n % 2 else torch.cos(x) + n
    return y + 1


def breaking(x, n):
    y = x * n
    bothways.graph_break()
    return torch.relu(y - 1) + called(x, n)


def called(x, n):
    print(end="")
    return x + n


def raising(x, n):
    if n == 3:
        raise ValueError(n)
    return x / (n + 1)


FUNCTIONS = (branching, breaking, raising)


def answer(function, *args):
    try:
        return function(*args)
    except ValueError as error:
        return str(error)


def agree(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return torch.equal(one, other)


class Stress:
    """Workers that call shared functions and compile new ones; what any of them found wrong is in ``wrong``."""

    def __init__(self, backend="eager", callers=4, seed=0):
        self.shared = [bothways.compile(function, backend=backend) for function in FUNCTIONS]
        self.backend, self.seed, self.callers = backend, seed, callers
        self.done, self.wrong, self.calls = threading.Event(), [], 0

    def run(self, seconds):
        jobs = [*[self._call] * self.callers, self._compile, self._compile, self._reset, self._stand]
        threads = [threading.Thread(target=self._guarded, args=(job, index)) for index, job in enumerate(jobs)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            self.done.wait(seconds)
        finally:
            self.done.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
            bothways.set_stance("default")
        return self

    def _guarded(self, job, index):
        chance = random.Random(self.seed + index)
        try:
            while not self.done.is_set():
                job(chance)
        except BaseException as error:
            self.wrong.append(error)
            self.done.set()
            raise

    def _call(self, chance):
        number = chance.randrange(len(FUNCTIONS))
        self._check(self.shared[number], FUNCTIONS[number], chance)

    def _compile(self, chance):
        function = chance.choice(FUNCTIONS)
        compiled = bothways.compile(function, backend=self.backend)
        for _ in range(3):
            self._check(compiled, function, chance)

    def _check(self, compiled, function, chance):
        x, n = torch.full((chance.choice((2, 2, 3)),), 0.5), chance.randrange(5)
        expected, got = answer(function, x, n), answer(compiled, x, n)
        self.calls += 1
        if not agree(expected, got):
            self.wrong.append(f"{function.__name__}({x}, {n}): {got}, not {expected}")
            self.done.set()

    def _reset(self, chance):
        bothways.reset()
        time.sleep(chance.random() * 0.01)

    def _stand(self, chance):
        bothways.set_stance(chance.choice(STANCES))
        time.sleep(chance.random() * 0.01)


def main(seconds, backend="eager"):
    begin = time.time()
    while (left := seconds - (time.time() - begin)) > 0:
        stress = Stress(backend, seed=random.randrange(10**6)).run(min(left, 20))
        print(f"{time.time() - begin:.0f} s: {stress.calls} calls", flush=True)
        if stress.wrong:
            raise SystemExit(f"seed {stress.seed}: {stress.wrong}")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", bothways.errors.RecompileLimitWarning)
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 600, *sys.argv[2:])
