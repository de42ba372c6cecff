"""State is passed, not found: what a module keeps that can change is listed here, with what it is for.

The package is read with ``ast`` and never imported. Functions that remember their answers (``functools.cache``) are no
state: what they say does not change.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from package_sources import FILES, name_of, tree_of

# Filled while the package is loaded, and only read afterwards.
TABLES = {
    "api/compile.py OPTIONS", "cache/portable.py ACCEPTS", "capture/breaks/steps.py TABLE",
    "capture/bytecode/opcodes/common.py TABLE", "capture/values/core/handlers.py HANDLERS",
    "capture/values/tensors/tensors.py INDICES", "capture/values/tensors/tensors.py SETTERS",
    "capture/values/tensors/tensors.py SPECIAL_METHODS", "ops/rules.py LOWERINGS", "ops/rules.py REFUSALS",
    "ops/rules.py SHAPE_RULES", "ops/rules.py WARNINGS", "backward/engine.py default_compiler", "config.py _listeners",
    "runtime/collectives.py _TRACED",
}  # fmt: skip
# What was found out about this process, this machine or this PyTorch; finding it out again would say the same.
CACHES = {
    "backends/registry.py _loaded_entry_points", "building/build.py _loaded", "building/build.py _options",
    "building/build.py _troubles", "building/cuda_build.py _modules", "cache/digests.py _known",
    "calls/call_library.py _failures", "calls/call_library.py _found", "capture/writing/definitions.py _of_classes",
    "driver/pools.py _pools", "fake/mode.py _known", "replay/recorders.py _recorders",
    "runtime/collectives.py _groups", "runtime/collectives.py _numbers", "torch_compat/backward_engine.py FORMULAS",
    "torch_compat/kernels.py _overloads",
}  # fmt: skip
# What users have asked for: backends, marks, who watches, whose backwards are captured.
ASKED = {
    "backends/registry.py _registered", "backward/capturing.py _users", "driver/everyone.py _kept",
    "lower/host/watching.py _looks", "runtime/marks.py _marks",
}  # fmt: skip
# What there is now, for ``reset()``, reports and memory that must not be let go of.
LIVE = {
    "backward/programs.py _all", "backward/steps.py callbacks", "calls/bound_names.py _bound",
    "driver/everyone.py _all", "locks.py _locks", "lower/host/watching.py _programs", "record/progress.py _line",
    "replay/cuda_graphs.py _left", "replay/replayed.py _all", "replay/replayed.py _lent",
}  # fmt: skip
# What belongs to the thread that runs.
OF_THREADS = {"replay/workspaces.py _woken", "runtime/listening.py _state", "runtime/logs.py _thread"}

LISTED = TABLES | CACHES | ASKED | LIVE | OF_THREADS
# Numbers that are never given twice, and locks, are nothing that a call could find changed.
HARMLESS = re.compile(r"(itertools\.count|Lock|threading\.RLock)\(")
CONTAINER = re.compile(r"(set|dict|list|weakref\.\w+|threading\.local|(collections\.)?\w*([dD]ict|Counter|deque))\(\)$")


def state_of(tree: ast.Module) -> Iterator[str]:
    """The names of a module that begin empty, so that they are there to be filled, or that functions assign."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
            text = ast.unparse(node.value)
            if text in ("{}", "[]") or (CONTAINER.match(text) and not HARMLESS.match(text)):
                yield ast.unparse(target)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def test_what_modules_keep_is_listed():
    kept = {f"{name_of(path)} {name}" for path in FILES for name in state_of(tree_of(path))}
    constants = {"record/graphs.py NOTHING"}  # a Mapping, to whoever reads it
    assert kept - constants == LISTED


@pytest.mark.parametrize(
    "text, names",
    [
        ("_known: dict[str, int] = {}", ["_known"]),
        ("TABLE = {'a': 1}", []),
        ("_seen = set()", ["_seen"]),
        ("_all: weakref.WeakSet[int] = weakref.WeakSet()", ["_all"]),
        ("_numbers = itertools.count(1)\n_lock = Lock()", []),
        ("def f():\n    global _line\n    _line = 1", ["_line"]),
        ("def f():\n    known = {}", []),
    ],
)
def test_the_rule_on_state(text, names):
    assert list(state_of(ast.parse(text))) == names
