"""Numbers that change from call to call, such as a learning rate: what a program computes of them, as functions.

The kernels of a recording have the values of one call among their arguments. Which arguments these are is found by
recording again with other numbers; what is there for yet other numbers is what the program's own text says.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

PLAIN = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp)


def is_ordinary(number: float) -> bool:
    """Whether no operation has a way of its own for a number, as some have for 0, 1, 2 or a half."""
    return math.isfinite(number) and not float(2 * number).is_integer()


class Expressions:
    """Everything that a compiled graph computes of its numbers before it launches something."""

    def __init__(self, run: Callable[..., Any], places: Sequence[int]) -> None:
        source = "".join(linecache.getlines(run.__code__.co_filename))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        names = _inputs(function)
        self._names = [names[place] for place in places]
        known = set(self._names)
        lines: list[ast.stmt] = []
        expressions: dict[str, ast.expr] = {name: ast.Name(name, ast.Load()) for name in self._names}
        for statement in ast.walk(function):
            if isinstance(statement, ast.Assign) and _is_of(statement.value, known):
                [target] = statement.targets
                assert isinstance(target, ast.Name)
                known.add(target.id)
                lines.append(statement)
                expressions[target.id] = ast.Name(target.id, ast.Load())
        for node in ast.walk(function):
            if isinstance(node, (ast.BinOp, ast.UnaryOp)) and _is_of(node, known):
                expressions[ast.unparse(node)] = node
        launched = (argument for call in ast.walk(function) if _launches(call) for argument in call.args)
        inside = {id(node) for argument in launched if _is_of(argument, known) for node in ast.walk(argument)}
        inside |= {id(node) for line in lines for node in ast.walk(line)}
        uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in known]
        taken = {id(name) for name in ast.walk(function.body[0])} if _takes_list(function) else set()
        # Whether no operation of ATen's has anything to do with them: they are arguments of our kernels alone.
        self.are_ours = all(id(node) in inside or id(node) in taken for node in uses)
        result = ast.Return(ast.Tuple(list(expressions.values()), ast.Load()))
        arguments = ast.arguments([], [ast.arg(name) for name in self._names], None, [], [], None, [])
        body = [*lines, result]
        definition = ast.FunctionDef("numbers", arguments, body, [], lineno=1)
        if "type_params" in ast.FunctionDef._fields:  # since Python 3.12
            vars(definition)["type_params"] = []
        scope: dict[str, Any] = {}
        exec(compile(ast.fix_missing_locations(ast.Module([definition], [])), "<numbers>", "exec"), scope)
        self._function = scope["numbers"]

    def __call__(self, numbers: Sequence[float]) -> list[float]:
        """Their values, always in the same order."""
        return [float(value) for value in self._function(*numbers)]


def _launches(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether something is a call of kernels of ours, which take what they are given as it is."""
    if not isinstance(node, ast.Call) or node.keywords or not isinstance(node.func, ast.Name):
        return False
    return node.func.id.startswith("run_")


def _takes_list(function: ast.FunctionDef) -> bool:
    first = function.body[0]
    return len(function.args.args) == 1 and isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.List)


def _inputs(function: ast.FunctionDef) -> list[str]:
    """The names of what a program takes, or takes out of its list."""
    names = [argument.arg for argument in function.args.args]
    first = function.body[0]
    if len(names) == 1 and isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.List):
        return [name.id for name in first.targets[0].elts if isinstance(name, ast.Name)]
    return names


def _is_of(expression: ast.expr, known: set[str]) -> bool:
    """Whether something is arithmetic on known numbers, and on one at least."""
    nodes = [node for node in ast.walk(expression) if isinstance(node, ast.expr)]
    if not all(isinstance(node, PLAIN) for node in nodes):
        return False
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    return bool(names) and known.issuperset(names)
