"""What tests of the cache share: a list of what had to be done, which is empty where all of it was kept."""

import sys

from bothways.grad import differentiated
from bothways.lower.host import program as programming

differentiating = sys.modules["bothways.grad.differentiate"]  # the package has a function of that name


def counted_work(monkeypatch):
    """What is done from now on, by name: traces and lowered graphs."""
    done = []

    def counted(module, name):
        original = getattr(module, name)

        def count(*args, **kwargs):
            done.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, count)

    counted(differentiating, "trace_joint")
    counted(differentiated, "trace_joint")
    counted(programming, "lower")
    return done
