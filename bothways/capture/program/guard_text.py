"""Guards as Python, one expression each, in the order they are asked; and which of them a table in C answers.

Comes in: the guards that a capture has assumed. Goes out: their Checks, and the table with all that a body reads of it.
A path that several guards or the body share is read once, by an assignment inside of the first that reads it.
"""

from __future__ import annotations

import builtins
import re
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from bothways import torch_compat
from bothways.calls.call_library import call_library
from bothways.capture.guards.guards import STAMPED, Guard, WeakIdentity
from bothways.capture.guards.sources import (
    Attr,
    Cell,
    Injected,
    InjectedItem,
    Item,
    Local,
    Source,
    Together,
    spelled_with,
)
from bothways.capture.program.guard_table import TableWriter
from bothways.capture.values.code.attributes import MISSING
from bothways.capture.writing.emit import FreeNames
from bothways.config import config
from bothways.runtime.program import Check, Table
from bothways.source_text import identifier, is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Whether a handler of the user's would see what the other guards read.
FIRST_OF_ALL = tuple(
    f"torch.{ask.__name__}" for ask in (torch_compat.function_mode_depth, torch_compat.is_jit_tracing)
)
RESERVED = frozenset(dir(builtins)).union("hit failure error result state numbers after kept acted".split())
# What injected objects are called in generated code; a parameter of that form would hide one.
INJECTED_NAME = re.compile(r"_.*\d$|_bothways_|_(graph|table)$")


def inner_names(parameters: Iterable[str]) -> tuple[str, ...]:
    """The names parameters have in generated code, where builtins and injected objects keep their meaning."""
    taken = set(parameters) | RESERVED
    names: list[str] = []
    for name in parameters:
        if name in RESERVED or INJECTED_NAME.match(name) or not is_plain_name(name):
            name = identifier(name, "arg")
            while name in taken:
                name += "_"
            taken.add(name)
        names.append(name)
    return tuple(names)


class GuardWriter:
    """Writes guards as expressions over the parameters."""

    def __init__(self, tracer: Tracer, names: FreeNames, guards: list[Guard]) -> None:
        self.tracer, self.names = tracer, names
        uses: Counter[Source] = Counter()
        for guard in guards:
            for source in set(guard.sources):
                _count(source, uses)
        self._shared = {source for source, count in uses.items() if count > 1 and source.base is not None}

    def check(self, guard: Guard, *, in_table: bool = False) -> Check:
        code = guard.template.format(
            **{f"s{index}": self._read(source) for index, source in enumerate(guard.sources)},
            **{f"c{index}": self._constant(constant) for index, constant in enumerate(guard.constants)},
        )
        changed = guard.constants[0].changed if guard.template == STAMPED else None  # type: ignore[attr-defined]
        return Check(code, guard.text(), guard.where, in_table, changed, guard.led_by)

    def _read(self, source: Source) -> str:
        if source in self.names.bound:
            return self.names.bound[source]
        expression = spelled_with(source, self._read)
        if source not in self._shared:
            return expression
        name = self.names.fresh(self.names.hint(source))
        self.names.bound[source] = name
        return f"({name} := {expression})"

    def _constant(self, constant: object) -> str:
        if isinstance(constant, WeakIdentity):
            return self.tracer.inject(weakref.ref(constant.obj), repr(constant)).key + "()"
        if _has_literal(constant):
            return repr(constant)
        name = getattr(constant, "__name__", "")
        if isinstance(constant, type) and vars(builtins).get(name) is constant:
            return str(name)
        return self.tracer.inject(constant, _label(constant)).key


def _label(constant: object) -> str:
    names = (getattr(constant, attribute, None) for attribute in ("__qualname__", "co_name", "__name__"))
    label = next((name for name in names if isinstance(name, str)), None)
    # What a user's class makes of itself as a text may be anything, or raise.
    return label or (str(constant) if type(constant).__module__ in ("builtins", "torch") else type(constant).__name__)


def _count(source: Source, uses: Counter[Source]) -> None:
    uses[source] += 1
    if uses[source] == 1:
        for before in source.parts if isinstance(source, Together) else filter(None, [source.base]):
            _count(before, uses)


def _has_literal(constant: object) -> bool:
    if type(constant) is tuple:
        return all(_has_literal(item) for item in constant)
    return (
        constant is None
        or type(constant) in (int, bool, str, bytes)
        or (type(constant) is float and constant == constant and abs(constant) != float("inf"))
    )


def render_late(tracer: Tracer, parameters: list[str], guards: list[Guard]) -> tuple[Check, ...]:
    """Guards that were found after the program was written: they read everything anew."""
    writer = GuardWriter(tracer, parameter_names(parameters), [])
    return tuple(writer.check(guard) for guard in dict.fromkeys(guards))


def parameter_names(parameters: list[str]) -> FreeNames:
    """The names in generated code, with the parameters' own bound."""
    inner = inner_names(parameters)
    names = FreeNames([*parameters, *inner, *RESERVED])
    for parameter, name in zip(parameters, inner, strict=True):
        names.bound[Local(parameter)] = name
    return names


class ProgramGuards:
    """The guards of a program, as Python and, as far as that has rows for them, as a table."""

    def __init__(self, tracer: Tracer, parameters: list[str], names: FreeNames) -> None:
        guards = sorted(_without_implied(list(tracer.assumptions.guards)), key=_rank)
        writer = GuardWriter(tracer, names, guards)
        self._rows = TableWriter(parameters, tracer.names.namespace)
        # What C reads, too, may call a ``__torch_function__`` of the user's.
        self._library = call_library() if config.guards_in_c and not tracer.overrides.must_not_see else None
        is_taken = self._rows.takes if self._library is not None else lambda guard: False
        self.checks = tuple(writer.check(guard, in_table=is_taken(guard)) for guard in guards)
        self._tracer, self.bound = tracer, dict(names.bound)
        self._parameters = tuple(names.bound[Local(name)] for name in parameters)

    def table(self, body: list[str], root: str | None, groups: Mapping[str, Sequence[str]]) -> Table | None:
        """The table, which gives the groups, and the names that the rest of the guards and the body read."""
        if self._library is None:
            return None
        sources = {name: source for source, name in self.bound.items()}
        grouped = {group: [sources[name] for name in names] for group, names in groups.items()}
        whole = {group: ones for group, ones in grouped.items() if self._rows.can_group(ones)}
        text = "\n".join([*body, *(check.code for check in self.checks if not check.in_table)])
        words = set(re.findall(r"\w+", text))
        words.update(name for group, names in groups.items() if group not in whole for name in names)
        read = {name: source for source, name in self.bound.items() if name in words and self._rows.has(source)}
        key = f"_table_{self._tracer.options.tag}".rstrip("_")
        rows = self._rows.finish(self._library, [*read.values(), *whole.values()])
        self._tracer.names.put(key, rows.check())
        return Table(key, self._parameters, (*read, *whole), None if root is None else rows)


def _without_implied(guards: list[Guard]) -> list[Guard]:
    """Leave out that a key is there when another guard reads its entry: reading what is not there is a miss."""
    read: Counter[Source] = Counter()
    for guard in guards:
        for source in guard.sources:
            _count(source, read)
    return [guard for guard in guards if guard.template != "{c0} in {s0}" or _entry(guard) not in read]


def _entry(guard: Guard) -> Source | None:
    (container,), (key,) = guard.sources, guard.constants
    return Item(container, key) if isinstance(key, Hashable) else None


def _rank(guard: Guard) -> int:
    """Arguments change most often, then what they lead to, then globals and interpreter state, then definitions.

    First of all come the questions whether a torch function mode or a tracer is active: it would see the other guards.
    """
    if guard.template == STAMPED:
        return 2
    if any(isinstance(source, Injected) and source.label in FIRST_OF_ALL for source in guard.sources):
        return -1
    roots = [source.root for source in guard.sources]
    return 0 if all(isinstance(root, Local) for root in roots) else 1


def still_there(tracer: Tracer, needed: Iterable[Source]) -> list[Guard]:
    """Guards that read what no other guard does: where it is gone, the program does not apply."""
    read: Counter[Source] = Counter()
    for guard in tracer.assumptions.guards:
        for source in guard.sources:
            _count(source, read)
    may_be_gone = (source for source in dict.fromkeys(needed) if isinstance(source, (Attr, Item, InjectedItem, Cell)))
    return [Guard("{s0} is not {c0}", (source,), (MISSING,)) for source in may_be_gone if source not in read]
