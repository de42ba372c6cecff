"""Guards as rows of a table that C checks in one call, and what it hands over to the rest of the program.

``TableWriter`` takes guards in order and says of each whether the table has rows for it; the others stay Python, after
it. A row asks what the guard's Python asks, by the functions Python calls for it or, about tensors of plain classes,
by PyTorch's own answers. Where the table says no, the call is a miss, and the Python guards have the last word.
"""

from __future__ import annotations

import builtins
import ctypes
import re
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import CallLibrary
from bothways.calls.guard_rows import Address, Results, Row, TensorFacts
from bothways.capture.guards.guards import MEMBERS, STAMPED, Guard, WeakIdentity, distinct_template
from bothways.capture.guards.sources import (
    VALUES,
    Attr,
    BaseItem,
    Cell,
    DictGet,
    Injected,
    InjectedItem,
    Item,
    Local,
    Reading,
    Source,
    WeakInjected,
)
from bothways.capture.values.code.attributes import HEAP_TYPE, MISSING, lookup

# What a guard asks of one value -> the row that asks it, and which answer is expected.
ASKS: dict[str, tuple[str, bool]] = {
    "type({s0}) is {c0}": ("TYPE", True),
    "{s0}": ("TRUE", True),
    "not {s0}": ("TRUE", False),
    "{s0} is {c0}": ("IS", True),
    "{s0} is not {c0}": ("IS", False),
    "{s0} == {c0}": ("EQUAL", True),
    "len({s0}) == {c0}": ("LENGTH", True),
    "tuple({s0}) == {c0}": ("KEYS", True),
    "tuple(map(id, tuple({s0}))) == {c0}": ("IDENTITIES", True),
    "{c0} in {s0}": ("CONTAINS", True),
    "{c0} not in {s0}": ("CONTAINS", False),
}
PAIRS = {"{s0} is {s1}": True, "{s0} is not {s1}": False}
GRADIENT = {"{s0}.requires_grad": True, "not {s0}.requires_grad": False}

# What a guard asks of a tensor -> what that says about it; None where PyTorch's C interface has no such question.
Fact = tuple[str, Any]
FACTS: dict[str, Callable[..., list[Fact]]] = {
    "{s0}.dtype is {c0}": lambda dtype: [("dtype", torch_compat.dtype_code(dtype))],
    "{s0}.shape == {c0}": lambda sizes: [("sizes", sizes)],
    "{s0}.is_contiguous()": lambda: [("is_contiguous", True)],
    "{s0}.stride() == {c0}": lambda strides: [("strides", strides)],
    "{s0}.is_cpu": lambda: [("device_type", torch_compat.device_code("cpu"))],
    "{s0}.device == {c0}": lambda device: [
        ("device_type", torch_compat.device_code(device.type)),
        ("device_index", -1 if device.index is None else device.index),
    ],
    "{c0}({s0})": lambda ask: [("has_plain_memory", True if ask is torch_compat.has_plain_memory else None)],
}

# The same is asked of an attribute, `{s0}.forward is {c0}`, or of an answer, `not {s0}()`.
_PART = re.compile(r"(.*\{s0\})(\.[A-Za-z_]\w*|\(\))(.*)")

# Objects of these classes are equal to themselves, so that C may look whether it is the same one first.
_REFLEXIVE = (int, bool, str, bytes, types.NoneType, torch.dtype, torch.device, torch.Size)


class TableWriter:
    """A table under construction. ``namespace`` holds the objects that injected sources name."""

    def __init__(self, parameters: Iterable[str], namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._slots: dict[Source, int] = {Local(name): index for index, name in enumerate(parameters)}
        self._arguments = self._count = len(self._slots)
        self._rows: list[Row] = []
        self._classes: dict[tuple[type, str], Row] = {}
        self._types: dict[Source, object] = {}  # what was asked about the class of each source's object
        self._tensors: dict[Source, TensorFacts] = {}
        self._readable: dict[Source, bool] = {}

    def takes(self, guard: Guard) -> bool:
        """Add the rows of a guard; False when there are none for it."""
        template, sources = guard.template, guard.sources
        if template == STAMPED:
            self._rows.append(_stamped(*guard.constants))
            return True
        if not all(map(self._is_readable, sources)):
            return False
        if template in FACTS or template in GRADIENT:
            return self._ask_tensor(guard)
        if template in ASKS:
            return self._ask(*ASKS[template], guard)
        if template in PAIRS:
            one, other = map(self._slot, sources)
            self._rows.append(Row("SAME", one, flag=PAIRS[template], data=other))
            return True
        if template == MEMBERS:
            one, other = map(self._slot, sources)
            self._rows.append(Row("MEMBERS", one, object=guard.constants[0], data=other))
            return True
        if template == distinct_template(len(sources)):
            self._rows.append(Row("DISTINCT", data=[len(sources), *map(self._slot, sources)]))
            return True
        part = _PART.fullmatch(template)
        if part is None or len(sources) != 1:
            return False
        before, step, after = part.groups()
        if step == "()" and not after and before in ASKS and self._ask_state(sources[0], ASKS[before][1]):
            return True
        inner = Reading(sources[0], "{}()") if step == "()" else Attr(sources[0], step[1:])
        return self.takes(Guard(before + after, (inner,), guard.constants))

    def has(self, source: Source) -> bool:
        """Whether the table reads this source; the arguments are given to it."""
        return source in self._slots and not isinstance(source, Local)

    def can_group(self, sources: Iterable[Source]) -> bool:
        """Whether the table can hand over what all of these lead to as one tuple."""
        return all(source in self._slots for source in sources)

    def finish(self, library: CallLibrary, sources: Iterable[Source | Sequence[Source]]) -> FinishedRows:
        """The table, which hands over what ``sources`` lead to, those that are a group as one tuple."""
        rows = [*self._classes.values(), *self._rows]
        results = [
            self._slots[source] if isinstance(source, Source) else [self._slots[one] for one in source]
            for source in sources
        ]
        return FinishedRows(library, rows, self._count, self._arguments, results)

    # Asking.

    def _ask(self, operation: str, flag: bool, guard: Guard) -> bool:
        (source,), constants = guard.sources, guard.constants
        constant: Any = constants[0] if constants else None
        data: Any = 0
        if operation == "IS" and isinstance(constant, WeakIdentity):
            operation, constant = "IS_WEAKLY", weakref.ref(constant.obj)
        elif operation == "EQUAL" and not _is_reflexive(constant):
            return False
        elif operation == "LENGTH":
            data = constant
        elif operation == "KEYS":
            data = len(constant)
        elif operation == "IDENTITIES":
            data = [len(constant), *constant]
        self._rows.append(Row(operation, self._slot(source), flag=flag, object=constant, data=data))
        if operation == "TYPE":
            self._types.setdefault(source, constant)
        return True

    def _ask_state(self, source: Source, flag: bool) -> bool:
        """Ask C++ itself where the function that is called does nothing else."""
        ask = self._namespace[source.key] if type(source) is Injected else None
        address = torch_compat.state_question(ask) if isinstance(ask, types.BuiltinFunctionType) else None
        if address is not None:
            self._rows.append(Row("STATE", flag=flag, data=address))
        return address is not None

    def _ask_tensor(self, guard: Guard) -> bool:
        (source,), cls = guard.sources, self._types.get(guard.sources[0])
        if not isinstance(cls, type) or cls not in torch_compat.PLAIN_TENSORS:
            return False  # the class may answer in its own way
        if guard.template in GRADIENT:
            self._expect_of_class(cls, "requires_grad")
            getter, flag = torch_compat.REQUIRES_GRAD, GRADIENT[guard.template]
            self._rows.append(Row("GRADIENT", self._slot(source), flag=flag, object="requires_grad", other=getter))
            return True
        facts = FACTS[guard.template](*guard.constants)
        if any(value is None for _, value in facts):
            return False
        if source not in self._tensors:
            self._tensors[source] = TensorFacts()
            self._rows.append(Row("TENSOR", self._slot(source), data=self._tensors[source]))
        for name, value in facts:
            setattr(self._tensors[source], name, value)
        return True

    # Reading.

    def _is_readable(self, source: Source) -> bool:
        if source not in self._readable:
            step = isinstance(source, (Local, Injected, Attr, Item, DictGet, Cell))
            step |= isinstance(source, InjectedItem) and not isinstance(source.key, WeakInjected)
            step |= isinstance(source, BaseItem) and isinstance(vars(builtins).get(source.builtin), type)
            step |= isinstance(source, Reading) and source.template == "{}()" and type(source.origin) is Injected
            step |= isinstance(source, Reading) and source.template == VALUES
            self._readable[source] = step and (source.base is None or self._is_readable(source.base))
        return self._readable[source]

    def _slot(self, source: Source) -> int:
        """Where the table has what a source leads to, reading it now if it was not read yet."""
        if source not in self._slots:
            self._slots[source] = self._read(source)
        return self._slots[source]

    def _read(self, source: Source) -> int:
        match source:
            case WeakInjected(key) | Reading(Injected(key), "{}()"):
                return self._new(Row("CALL", object=self._namespace[key]))
            case Reading(base, template) if template == VALUES:
                return self._new(Row("VALUES", self._slot(base), object="values"))
            case Injected(key):
                return self._new(Row("OBJECT", object=self._namespace[key]))
            case Attr(base, "__dict__"):
                return self._dictionary(base)
            case Attr(base, name):
                return self._attribute(base, name)
            case Item(base, key):
                return self._new(Row("ITEM", self._slot(base), object=key))
            case InjectedItem(base, injected):
                return self._new(Row("ITEM", self._slot(base), object=self._namespace[injected.key]))
            case DictGet(base, Injected() as key):
                self._expect_hashes()
                return self._new(Row("ENTRY", self._slot(base), data=self._slot(key)))
            case DictGet(base, key):
                return self._new(Row("ENTRY", self._slot(base), flag=False, object=key))
            case BaseItem(base, builtin, key):
                method = vars(builtins)[builtin].__getitem__
                return self._new(Row("ITEM_OF_BASE", self._slot(base), object=key, other=method))
            case Cell(base, index):
                closure = self._new(Row("ATTRIBUTE", self._slot(base), object="__closure__"))
                cell = self._new(Row("ITEM", closure, object=index))
                return self._new(Row("ATTRIBUTE", cell, object="cell_contents"))
        raise AssertionError(f"{source} was said to be readable")

    def _new(self, row: Row) -> int:
        row.to = self._count
        self._count += 1
        self._rows.append(row)
        return row.to

    # Attributes of plain instances are read from their dictionaries, when their class has none of that name.

    def _attribute(self, base: Source, name: str) -> int:
        start, cls = self._slot(base), self._types.get(base)
        if not isinstance(cls, type) or not _is_plain(cls) or lookup(cls, name) is not MISSING:
            return self._new(Row("ATTRIBUTE", start, object=name))
        dictionary = self._slot(Attr(base, "__dict__"))
        self._expect_of_class(cls, name)
        return self._new(Row("FIELD", start, object=name, data=dictionary))

    def _dictionary(self, owner: Source) -> int:
        start, cls = self._slot(owner), self._types.get(owner)
        if not isinstance(cls, type) or not _is_plain(cls):
            return self._new(Row("ATTRIBUTE", start, object="__dict__"))
        self._expect_of_class(cls, "__dict__")
        self._expect_of_class(cls, "__getattribute__")
        return self._new(Row("DICTIONARY", start, object="__dict__"))

    def _expect_hashes(self) -> None:
        """A tensor that is a key is found by its address, as long as that is its hash."""
        sample = torch.empty(0, device="meta")
        usual = lookup(torch.Tensor, "__hash__")
        is_address = getattr(usual, "__module__", "") == "torch._tensor" and hash(sample) == id(sample)
        for cls in torch_compat.PLAIN_TENSORS:
            if is_address and lookup(cls, "__hash__") is usual:
                self._expect_of_class(cls, "__hash__")
            else:  # never so: hashes are asked for
                self._classes.setdefault((cls, "__hash__"), Row("PLAIN_CLASS", object=cls, other="__hash__", data=0))

    def _expect_of_class(self, cls: type, name: str) -> None:
        """What a class says about a name, asked once for all its instances; where it differs, they are read slower."""
        attribute = lookup(cls, name)
        expected = 0 if attribute is MISSING else Address(attribute)
        self._classes.setdefault((cls, name), Row("PLAIN_CLASS", object=cls, other=name, data=expected))


@dataclass(frozen=True)
class FinishedRows:
    """A table that is complete."""

    library: CallLibrary
    rows: Sequence[Row]
    slots: int
    arguments: int
    results: Results

    def check(self) -> Callable[..., Any]:
        """The function that checks it."""
        return self.library.check(self.rows, self.slots, self.arguments, self.results)

    def rebound(self, others: Mapping[int, Any]) -> FinishedRows:
        """The same about other objects: a function, and stamps that it is in."""
        return replace(self, rows=[_rebound(row, others) for row in self.rows])


def _rebound(row: Row, others: Mapping[int, Any]) -> Row:
    other = others.get(id(row.object))
    if other is None:
        return row
    return replace(row, object=other) if isinstance(other, types.FunctionType) else _stamped(other)


def _stamped(stamp: Any) -> Row:
    operation, read = stamp.packed()
    data = ctypes.addressof(read) if isinstance(read, ctypes.Array) else 0
    return Row(operation, object=stamp, other=read, data=data)


def _is_plain(cls: type) -> bool:
    """Whether instances have a dictionary, and attributes are found in the way of ``object``."""
    own = lookup(cls, "__dict__")
    getter = lookup(cls, "__getattribute__")
    # Only the ``class`` statement makes a way to the dictionary that is sure to lead to the dictionary.
    is_made_by_class = isinstance(own, types.GetSetDescriptorType) and bool(own.__objclass__.__flags__ & HEAP_TYPE)
    return getter is object.__getattribute__ and is_made_by_class


def _is_reflexive(constant: object) -> bool:
    if type(constant) is tuple:
        return all(map(_is_reflexive, constant))
    return type(constant) in _REFLEXIVE or (type(constant) is float and constant == constant)
