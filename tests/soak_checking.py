"""Runs a generated program plainly and compiled, and tells the first thing that differs.

Each run is a module of its own, made from the same source, so that globals and classes are two; what a call returns,
raises, changes and logs becomes a snapshot, in which an object that was seen before is a number: who is who counts.
"""

import ast
import collections
import linecache
import re
import types
import warnings

import soak_rounding
import soak_ways
import torch

import bothways

# What stays from call to call, beside the arguments.
GLOBALS = "total SEEN COUNTS NAMES RECENT WEIGHT MODEL LOG".split()
# The calls: the numbers that make the arguments, and a size. The second is like the first and finds its programs; in
# the third some of the arguments share memory.
CALLS = ((1, 2, True, 2), (1, 2, True, 2), (5, 3, False, 2), (6, 4, True, 3), (7, 5, False, 4))


def load(source, name):
    """A module made from the source."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType("soaked")
    module.snapshot = snapshot
    exec(compile(source, name, "exec"), vars(module))
    return module


def arguments(module, seed, number, flag, size):
    torch.manual_seed(seed)
    x = torch.randn(size, size).requires_grad_()
    y = torch.randn(size, size)
    thing = (module.Derived if flag else module.Base)(torch.randn(size, size), number)
    table = {"a": torch.randn(size, size), "b": torch.randn(1)}
    items = [torch.randn(size, size), torch.randn(1)]
    if number == 3:
        table["b"], items[1] = y, y.view(-1)[:1]
    args = [x, y, number, items, table, thing, number, 7]
    return args, {"flag": flag, "extra": number}


def snapshot(value, seen=None):
    """A value as it is now, as nested tuples."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, str, type, types.FunctionType)):
        return getattr(value, "__name__", value)
    if id(value) in seen:
        return ("again", seen[id(value)][0])
    if not isinstance(value, tuple):  # equal tuples may be one or two
        seen[id(value)] = len(seen), value
    if isinstance(value, torch.Tensor):
        history = [asked(lambda: value.is_leaf), asked(lambda: value.grad if value.is_leaf else None)]
        return ("tensor", asked(lambda: value.detach().clone()), value.requires_grad, *map(snapshot, history))
    if isinstance(value, dict):
        return ("dict", [(snapshot(key, seen), snapshot(item, seen)) for key, item in value.items()])
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(str, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return (type(value).__name__, [snapshot(item, seen) for item in value])
    if isinstance(value, BaseException):
        return raised(value)
    return (type(value).__name__, snapshot(getattr(value, "__dict__", None), seen))


def asked(question):
    """An answer, or why there is none: autograd does not let some views be used any more."""
    try:
        return question()
    except RuntimeError as error:
        return str(error)


def raised(error, depth=4):
    """An exception with those behind it, and the user's lines it went through."""
    if error is None or depth == 0:
        return None
    lines, step = [], error.__traceback__
    while step is not None:
        place = step.tb_frame.f_code.co_name, step.tb_lineno
        if step.tb_frame.f_code.co_filename.startswith("<soak") and lines[-1:] != [place]:
            lines.append(place)
        step = step.tb_next
    if isinstance(error, UnboundLocalError) and lines:
        # Python 3.11 joins a store and the load behind it when code is warm, and tells the store's line from then on.
        lines[-1] = lines[-1][0], None
    message = re.sub(r" at 0x[0-9a-f]+", "", str(error))
    behind = raised(error.__cause__, depth - 1), raised(error.__context__, depth - 1), error.__suppress_context__
    return (type(error).__name__, message, lines, behind)


def tensors_in(value, found):
    """The tensors of a result that lead back to something."""
    if isinstance(value, torch.Tensor):
        leads = value.requires_grad and asked(lambda: value.grad_fn) is not None
        return [*found, value] if leads else found
    for item in value if isinstance(value, (list, tuple)) else ():
        found = tensors_in(item, found)
    return found


def gradients(result, wanted, kept=None):
    """What a backward through the result gives; with ``kept``, a real one, after which those have their gradients."""
    tensors = tensors_in(result, [])
    if not tensors:
        return None
    try:
        if kept is not None:
            sum(part.sum() for part in tensors).backward()
            return [each.grad for each in (*wanted, *kept)]
        return torch.autograd.grad(sum(part.sum() for part in tensors), wanted, allow_unused=True)
    except RuntimeError as error:
        return type(error).__name__  # the text may name nodes of the graph


def calls(module, function):
    """What every call of a program shows."""
    shown = []
    between, kept = getattr(module, "between", None), getattr(module, "KEPT", None)
    for number, call in enumerate(CALLS):
        module.LOG.clear()
        if kept is not None:
            kept.clear()
        if between is not None:
            between(number)
        args, kwargs = arguments(module, *call)
        error = result = None
        try:
            result = function(*args, **kwargs)
        except Exception as caught:
            error = caught
        state = {name: getattr(module, name) for name in GLOBALS}
        parts = {
            "raised": raised(error),
            "log": list(module.LOG),
            "state": snapshot([result, args, kwargs, state, module.Base.kind, torch.is_grad_enabled()]),
            "gradients": snapshot(gradients(result, [args[0], module.MODEL.weight], kept)),
            "hooks": list(module.LOG),
        }
        shown.append(parts)
        del args, kwargs, result, error
    return shown


def undo(module):
    """Put back what a program replaced."""
    if hasattr(module, "between"):
        module.between(None)


def plainly(source):
    """What the calls of a program show when nothing is compiled."""
    module = load(source, "<soak>")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return calls(module, module.target)
    finally:
        undo(module)
        torch.set_grad_enabled(True)


def disagreement(source, way=soak_ways.EAGER, plain=None):
    """The first thing in which the compiled program is not like the plain one; None when there is none.

    ``plain`` is what ``plainly`` gave, for those who look at several ways.
    """
    expected = plain or plainly(source)
    module = load(source, "<soak>")
    try:
        with warnings.catch_warnings(), soak_ways.taken(way) as failures:
            warnings.simplefilter("ignore")
            function = bothways.compile(module.target, backend=way.backend)
            got = calls(module, function)
            found = soak_ways.mistake(function, failures, catches=_CATCHING.search(_body_of(source)) is not None)
    finally:
        undo(module)
        torch.set_grad_enabled(True)
        bothways.reset()
    place = soak_rounding.beyond_rounding(expected, got, lambda: soak_rounding.rounded(lambda: plainly(source)))
    if place is not None:
        number, part, different = place
        shown = f"plain    {expected[number][part]}\ncompiled {got[number][part]}"
        return f"call {number}, {part}: {different}\n{shown}"
    return found


# How a program goes on after an error, and what may be one.
_CATCHING = re.compile(r"\b(except|suppress|Manager|assert|finally)\b")


def _body_of(source):
    """The function that is compiled, and what those it calls have generated bodies."""
    return source.partition("def target(")[2]


# Making a program that fails smaller.


def smaller(source, fails):
    """The source without whatever it still fails without."""
    tree = ast.parse(source)
    going_on = True
    while going_on:
        going_on = False
        for owner, name in _bodies(tree):
            body = getattr(owner, name)
            for index in reversed(range(len(body))):
                kept = list(body)
                for other in _without(body[index]):
                    candidate = kept[:index] + other + kept[index + 1 :]
                    setattr(owner, name, candidate or [ast.Pass()])
                    if _still_fails(tree, fails):
                        going_on = True
                        break
                    setattr(owner, name, kept)
                body = getattr(owner, name)
                if index > len(body):
                    break
    return ast.unparse(ast.fix_missing_locations(tree))


def _bodies(tree):
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list) and getattr(node, name):
                yield node, name


def _without(statement):
    """What may stand in the place of a statement: nothing, or the statements in it."""
    if isinstance(statement, ast.Pass):
        return
    yield []
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if isinstance(inner, list) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield inner


def _still_fails(tree, fails):
    try:
        source = ast.unparse(ast.fix_missing_locations(tree))
        compile(source, "<soak>", "exec")
    except (SyntaxError, ValueError):
        return False
    return fails(source)
