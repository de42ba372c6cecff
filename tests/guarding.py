"""What the tests of guards share: a change needs a program of its own, or needs none.

Plain and compiled are compared at every call; the compile counter tells whether a program was found.
"""

import bothways
from bothways.testing import CompileCounter


def changes(program, first, *others):
    """Each of the other arguments needs a program of its own; the first one, and each again, does not."""
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, dynamic=False)
    seen = []
    for args in (first, *others):
        frames = counter.frame_count
        assert repr(compiled(*args)) == repr(program(*args))
        assert counter.frame_count == frames + 1, f"{args} hit a program made for {seen}"
        assert repr(compiled(*args)) == repr(program(*args))
        assert counter.frame_count == frames + 1, f"{args} did not hit its own program"
        seen.append(args)
    assert repr(compiled(*first)) == repr(program(*first))
    assert counter.frame_count == len(seen)


def is_one_program(program, *calls):
    """All the calls give the right answer from one program."""
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for args in calls:
        assert repr(compiled(*args)) == repr(program(*args))
    assert counter.frame_count == 1


class Steps:
    """A compiled program and its frame count, for changes that are no arguments."""

    def __init__(self, program):
        self.program, self.counter = program, CompileCounter()
        self.compiled = bothways.compile(program, backend=self.counter)

    def agree(self, *args, frames):
        for _ in range(2):
            assert repr(self.compiled(*args)) == repr(self.program(*args))
        assert self.counter.frame_count == frames
