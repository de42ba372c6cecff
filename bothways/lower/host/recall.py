"""Programs from the cache on disk: a key comes in, and the program that was stored under it goes out, or None.

An entry is looked at before it is run: if it is no program, or has another number of inputs or results, it is dropped
and the graph is compiled again.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Callable
from typing import Any

import torch

from bothways.cache.disk import Cache, decoded, is_key
from bothways.cache.spelling import SCOPE
from bothways.calls.entry_source import SPELLING
from bothways.calls.tensors_made import numbers_of, row_of
from bothways.errors import KernelWarning
from bothways.lower.host.dialect import Dialect
from bothways.lower.host.text import FACTS, KERNELS, PYTHON, Text

# What the facts of a program are, besides its texts.
KINDS: dict[str, type] = {
    "name": str,
    "functions": dict,
    "takes_list": bool,
    "looks_at_grad_mode": bool,
    "names": dict,
    "library": str,
    "operations": int,
    "calls": int,
    "kernels": int,
    "about": list,
    "new": dict,
}


class Damaged(Exception):
    """An entry is no program."""


def recall(cache: Cache, key: str, takes: int, gives: int, dialect: Dialect) -> Callable[..., Any] | None:
    """The function of a stored program, of so many inputs and results; None when it is not there, or cannot be run."""
    files = cache.read(key)
    if files is None:
        return None
    try:
        text, names, library = _parsed(files, dialect)
        if (_input_count(text), _result_count(text)) != (takes, gives):
            raise Damaged("inputs or results")
        namespace = {name: eval(expression, dict(SCOPE)) for name, expression in names.items()}
        shown = dict(namespace)
        functions = dialect.recall(library, text.functions, cache) if library else {}
        if functions is None:
            raise Damaged("library")
        run = text.function(namespace, functions, dialect)
        _check_names(run.__code__.co_names, namespace)
    except KernelWarning:  # the user wants warnings to be errors
        raise
    except Exception:  # whatever it is that stands there
        cache.drop(key)
        return None
    text.show(shown, dialect, from_cache=True)
    text.tell()
    return run


def _parsed(files: dict[str, bytes], dialect: Dialect) -> tuple[Text, dict[str, str], str]:
    """A program, what its names stand for, and the key of its library."""
    facts = json.loads(decoded(files[FACTS]))
    if type(facts) is not dict or {name: type(value) for name, value in facts.items()} != KINDS:
        raise Damaged("facts")
    functions, names, library = facts["functions"], facts.pop("names"), facts.pop("library")
    if not all(type(value) is str for value in (*functions.values(), *names.values())):
        raise Damaged("names")
    if set("".join(functions.values())) - SPELLING.keys() or not (is_key(library) if functions else library == ""):
        raise Damaged("functions")
    for *kernel, members in facts["about"]:
        if [type(one) for one in (*kernel, *members)] != [str, str, int, int, *[str] * len(members)]:
            raise Damaged("about")
    if not all(type(rows) is list and all(type(row) is str for row in rows) for rows in facts["new"].values()):
        raise Damaged("new tensors")
    kernels = decoded(files[f"{KERNELS}{dialect.suffix}"])
    return Text(python=decoded(files[PYTHON]), kernel_text=kernels, **facts), names, library


def _input_count(text: Text) -> int:
    """How many inputs a program takes, or takes from its list."""
    definition = ast.parse(_line(text, "def run(") + " pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    names, begin = [argument.arg for argument in definition.args.args], _lines(text)[1:3]
    emptied = f"    {names[0]}.clear()" if names else None
    if text.takes_list != (emptied in begin):
        raise Damaged("takes_list")
    if not text.takes_list:
        return len(names)
    if len(names) != 1:
        raise Damaged("inputs")
    if begin[0] == emptied:
        return 0
    unpacked = ast.parse(begin[0].strip()).body[0]
    assert isinstance(unpacked, ast.Assign) and isinstance(unpacked.targets[0], ast.List)
    return len(unpacked.targets[0].elts)


def _result_count(text: Text) -> int:
    """How many results a program returns. Kernels have to be called with what they take."""
    for name, kinds in text.functions.items():
        call = ast.parse(_line(text, f"    {name}(").strip()).body[0]
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        if len(call.value.args) != len(kinds):
            raise Damaged(name)
    for name, rows in text.new.items():
        _check_new(text, name, rows)
    returned = ast.parse(_lines(text)[-1].strip()).body[0]
    assert isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple)
    return len(returned.value.elts)


def _check_new(text: Text, name: str, rows: list[str]) -> None:
    """As many tensors are made as are taken, of as many numbers as are passed."""
    takes = numbers_of([row_of(row) for row in rows])
    for line in _lines(text):
        if f" = {name}(" in line:
            assignment = ast.parse(line.strip()).body[0]
            assert isinstance(assignment, ast.Assign) and isinstance(assignment.value, ast.Call)
            [target] = assignment.targets
            count = len(target.elts) if isinstance(target, ast.Tuple) else 1
            if (count, len(assignment.value.args)) != (len(rows), takes):
                raise Damaged(name)


def _line(text: Text, begin: str) -> str:
    [line] = [line for line in _lines(text) if line.startswith(begin)]
    return line


def _lines(text: Text) -> list[str]:
    return text.python.rstrip("\n").split("\n")


def _check_names(used: tuple[str, ...], namespace: dict[str, Any]) -> None:
    """Every name of the program is one it has, or one of Python's, or of what tensors and lists have."""
    homes = (builtins, torch.Tensor, list)
    for name in used:
        if name not in namespace and not any(hasattr(home, name) for home in homes):
            raise Damaged(name)
