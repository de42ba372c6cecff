"""What the tests of the captured language share: a program is run plainly and compiled, and must agree.

Results, arguments afterwards and exceptions are compared; the second call has to find the program of the
first, and a call with other arguments has to be right whether it finds one or not.
"""

import copy
import re

from agreeing import assert_same

import bothways
from bothways.testing import CompileCounter


def agree(program, first, *others):
    """Compare plain and compiled on each tuple of arguments; the first one twice, which compiles once."""
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    compare(program, compiled, first)
    assert counter.frame_count == 1, "the program made no graph"
    compare(program, compiled, first)
    assert counter.frame_count == 1, "the second call did not find the program of the first"
    for other in others:
        compare(program, compiled, other)
    return counter


def compare(program, compiled, args):
    assert_same(observed(program, args), observed(compiled, args), f"called with {args}")


def observed(function, args):
    args = copy.deepcopy(args)
    result = outcome(function, args)
    return {
        "result as it prints": shown(result),
        "arguments afterwards as they print": shown(args),
        "result": result,
        "arguments afterwards": args,
    }


def shown(value):
    """The repr, which shows types, order and content, without the places of objects in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def outcome(function, args):
    """What a call returns, or what it raises with the exceptions behind it."""
    try:
        return function(*args)
    except Exception as error:
        return [("raised", type(link).__name__, str(link)) for link in chain(error)]


def chain(error):
    """An exception, its cause or context, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def raises(program, args):
    """A program whose exception leaves it: the user sees the same one, plain or compiled, every time."""
    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    for _ in range(2):
        expected = outcome(program, copy.deepcopy(args))
        assert expected[0][0] == "raised"
        compare(program, compiled, args)
    return expected


def agree_by_repr(program, *args):
    """Plain and compiled give the same repr, on the call that captures and on the one that does not."""
    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    expected = repr(program(*args))
    assert repr(compiled(*args)) == expected
    assert repr(compiled(*args)) == expected
    assert len(bothways.history(compiled)) == 1


def complaints(actions):
    """What each action raises."""
    raised = []
    for action in actions:
        try:
            raised.append(action())
        except Exception as error:
            raised.append((type(error).__name__, str(error)))
    return raised
