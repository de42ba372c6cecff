"""The small C library around calls of compiled functions: it checks guards, and it enters kernels.

Built once on a machine, loaded once in a process. It reads Python objects and tensors where they lie, so it is used
only after it gave the right answers about a dozen tensors here; without it guards are Python, and kernels are entered
through ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.building.build import TRIES, CSource, library_of
from bothways.calls.bound_names import KNOWN, PYTHON, TORCH, makers, text_with_names, usual_functions
from bothways.calls.entry_source import ENTER, POINTER, SPELLING
from bothways.calls.guard_rows import Results, Row, facts_of, packed
from bothways.calls.guard_source import guard_text
from bothways.calls.looking_source import LOOKING
from bothways.calls.memo_tries import remembers_rightly
from bothways.calls.starting_source import STARTING
from bothways.calls.tensor_source import TENSORS
from bothways.calls.tensors_made import MAKING, made_by_python, makes_rightly, packed_rows, row_of
from bothways.errors import BothwaysError, NoCompiler
from bothways.runtime.picking import picker
from bothways.runtime.stamps import MISSING, NamesStamp, sample_changes

# What the library makes: for each of these builtin functions it has a ``make_…``.
MADE = tuple("check entry versions counting holding noting looking arranging starting taking granting making".split())
REMEMBERED_FROM = 128  # rows; fewer are walked in a microsecond
MOST_PAIRS = 64  # of tensors that are compared one by one; of more, all must have memories of their own


def source_text() -> str:
    """The whole file."""
    return text_with_names({**PYTHON, **TORCH}, guard_text(), ENTER, TENSORS, LOOKING, STARTING, MAKING)


class CallLibrary:
    """The loaded library: each method makes a builtin function, which C runs without asking Python anything."""

    def __init__(self, library: ctypes.CDLL) -> None:
        making = makers(library, usual_functions(), *(f"make_{name}" for name in MADE))
        self._make: dict[str, Callable[..., Any]] = dict(zip(MADE, making, strict=True))
        self.gradients_of: Callable[[Sequence[Any]], tuple[Any, ...]] = self._make["taking"](None, None)
        self.set_gradients: Callable[..., bool] = self._make["granting"](None, None)
        self.remembers_from: int | None = 1  # rows of tables whose checks are remembered
        self.makes_tensors = bool(torch_compat.wrapping_function())

    def check(
        self, rows: Sequence[Row], slots: int, arguments: int, results: Results = ()
    ) -> Callable[..., Any]:
        """A function of ``arguments`` objects that tells whether all rows hold.

        It returns False, or what is in the slots ``results``, with a tuple for each group of them; True if there are no
        ``results``. It never raises for what a row does not find.
        """
        check: Callable[..., Any] = self._make["check"](*packed(rows, slots, arguments, results, self.remembers_from))
        return check

    def like(self, tensor: torch.Tensor) -> Callable[..., Any]:
        """Whether something is a tensor like this one, in everything that can be asked."""
        grad = Row("GRADIENT", flag=tensor.requires_grad, object="requires_grad", other=torch_compat.REQUIRES_GRAD)
        return self.check([Row("TYPE", object=type(tensor)), Row("TENSOR", data=facts_of(tensor)), grad], 1, 1)

    def apart(self, count: int, changed: Sequence[int]) -> Callable[..., Any]:
        """A function of ``count`` tensors that tells whether those at the places ``changed`` share no memory with
        others and were not made in inference mode; False if it is not sure."""
        pairs = {(min(one, other), max(one, other)) for one in changed for other in range(count) if one != other}
        sets = sorted(pairs) if 0 < len(pairs) <= MOST_PAIRS else [tuple(range(count))]
        return self.check([Row("APART", data=[len(places), *places]) for places in sets], count, count)

    def same(self, count: int) -> Callable[..., Any]:
        """A function of twice ``count`` objects that says whether the first half are the very objects of the second."""
        return self.check([Row("SAME", place, data=count + place) for place in range(count)], 2 * count, 2 * count)

    def versions(self, versions: Mapping[int, int]) -> Callable[[Sequence[Any]], bool]:
        """A function of a sequence that sets the versions of the tensors at these places; False if it could not."""
        pairs = [number for pair in versions.items() for number in pair]
        known = struct.pack(f"{2 + len(pairs)}q", len(versions), 1 + max(versions, default=-1), *pairs)
        set_versions: Callable[[Sequence[Any]], bool] = self._make["versions"](known, None)
        return set_versions

    def counting(self, updates: Sequence[tuple[int, int, int]]) -> Callable[..., bool]:
        """A function of inputs and results that counts changes: an update is the place of an input, its place among the
        results, and how much is added to its version. If one of these inputs is not the result at its place, the answer
        is False, and nothing is added. Called without results, it takes each input that is named for one."""
        most = [1 + max((update[side] for update in updates), default=-1) for side in (0, 1)]
        numbers = [number for update in updates for number in update]
        known = struct.pack(f"{3 + len(numbers)}q", len(updates), *most, *numbers)
        count: Callable[..., bool] = self._make["counting"](known, None)
        return count

    def holding(self, held: bytes) -> Callable[[], bool]:
        """A function that tells whether storages have as many holders and the same memory as when ``held_storages``
        looked at them."""
        are_held: Callable[[], bool] = self._make["holding"](held, None)
        return are_held

    def noting(self, lent: bytes) -> Callable[[Sequence[Any]], bool]:
        """A function that takes the tensors that are given away, and writes down in ``lent`` what they are like."""
        note: Callable[[Sequence[Any]], bool] = self._make["noting"](lent, None)
        return note

    def starting(
        self, launch: Callable[[], Any], places: bytes, held: bytes | None = None, lent: bytes | None = None
    ) -> Callable[[tuple[Any, ...], Any, bool], tuple[Any, ...] | bool]:
        """A function that calls ``launch`` if nothing has moved since it was recorded, with nothing run in between.

        Inputs must lie at ``places``, storages be ``held`` as they were, and the gradients of some tensors be those
        that were ``lent``, unchanged; these it returns. It takes the inputs as a tuple, the tensors whose gradients may
        be given again, or None, and whether changes of inputs are counted, for which they have to lie apart.
        """
        known = struct.pack("4Q", id(launch), _address(places), _address(lent), _address(held))
        start: Callable[..., tuple[Any, ...] | bool] = self._make["starting"](known, (launch, places, held, lent))
        return start

    def looking(self, count: int) -> Callable[[tuple[Any, ...]], int]:
        """A function of a tuple of ``count`` tensors that gives a number, which stays the same as long as they lie
        where they lie now, each in memory of its own and none made in inference mode; 0 if that is not sure."""
        numbers = [count, 0, *(number for place in range(count) for number in (0, 0, 0, place))]
        look: Callable[[tuple[Any, ...]], int] = self._make["looking"](struct.pack(f"{len(numbers)}q", *numbers), None)
        return look

    def arranging(self, order: Sequence[int], first: int) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]:
        """A function of two sequences that gives the items at the places ``order`` as one tuple; the first sequence has
        ``first`` items, and later places are in the second."""
        second = 1 + max((place - first for place in order), default=-1)
        known = struct.pack(f"{3 + len(order)}q", len(order), first, max(second, 0), *order)
        arrange: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]] = self._make["arranging"](known, None)
        return arrange

    def making(self, rows: Sequence[str]) -> Callable[..., Any]:
        """A function of numbers that makes a tensor, or a tuple of several: what they are, a row of text for each."""
        read = [row_of(row) for row in rows]
        in_python = made_by_python(read)
        known = packed_rows(read, in_python) if self.makes_tensors else None
        return in_python if known is None else self._make["making"](known, in_python)

    def entry(self, address: int, kinds: str, kept: Any) -> Callable[..., None]:
        """A function that calls a C function at ``address`` with arguments of these kinds and keeps ``kept`` alive."""
        entry: Callable[..., None] = self._make["entry"](struct.pack("Qq", address, len(kinds)) + kinds.encode(), kept)
        return entry


def held_storages(storages: Sequence[torch.UntypedStorage]) -> bytes:
    """How many holders each storage has now, and where its memory is, as C reads it."""
    words = [
        word
        for one in storages
        for word in (one._cdata, torch_compat.holders_of(one), one.data_ptr(), one.nbytes())
    ]
    return struct.pack(f"{1 + len(words)}Q", len(storages), *words)


def lent_tensors(places: Sequence[int]) -> bytes:
    """Memory in which ``noting`` writes what the tensors are like that are given away at these places."""
    length = torch_compat.tensor_length() // 8
    numbers = [len(places), 1 + max(places, default=-1), *torch_compat.held_as_gradient(), length]
    numbers += [number for place in places for number in (place, *[0] * (2 + length))]
    return struct.pack(f"{len(numbers)}Q", *numbers)


def _address(known: bytes | None) -> int:
    return ctypes.cast(ctypes.c_char_p(known), ctypes.c_void_p).value or 0


def entry(address: int, kinds: str, kept: Any) -> Callable[..., None]:
    """A function of tensors and numbers that calls a C function with what they hold, as an array of ``Given``.

    It keeps ``kept`` alive, which the C function needs.
    """
    library = call_library()
    if library is not None:
        return library.entry(address, kinds, kept)
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)
    spelling = "".join(SPELLING[kind] for kind in kinds)

    def enter(*values: Any, kept: Any = kept) -> None:
        arguments = (value.data_ptr() if kind == POINTER else value for value, kind in zip(values, kinds, strict=True))
        function(struct.pack(spelling, *arguments))

    return enter


def making(rows: Sequence[str]) -> Callable[..., Any]:
    """``CallLibrary.making``, or the same in Python."""
    library = call_library()
    return library.making(rows) if library is not None else made_by_python([row_of(row) for row in rows])


def apart(count: int, changed: Sequence[int]) -> Callable[..., Any] | None:
    """``CallLibrary.apart``, or None without a library. Where it says no, it may just not be sure."""
    library = call_library()
    return None if library is None else library.apart(count, changed)


def looking(count: int, changed: Sequence[int]) -> Callable[[tuple[Any, ...]], int] | None:
    """``CallLibrary.looking``; None where there are few pairs of tensors to compare, or C cannot tell."""
    library = word_library() if len(changed) * count > MOST_PAIRS else None
    return None if library is None or not torch_compat.offset_word() else library.looking(count)


def arranging(order: Sequence[int], first: int) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]:
    """``CallLibrary.arranging``, or the same in Python."""
    library = call_library()
    if library is not None:
        return library.arranging(order, first)
    pick = picker(order)
    return lambda one, other: pick([*one, *other])


def same(count: int) -> Callable[..., Any]:
    """``CallLibrary.same``, or the same in Python."""
    library = call_library()
    if library is not None:
        return library.same(count)
    return lambda *objects: all(map(operator.is_, objects[:count], objects[count:]))


def word_library() -> CallLibrary | None:
    """The library, if it knows the words of tensors; else None."""
    return call_library() if torch_compat.tensor_words() is not None else None


_found: list[CallLibrary | None] = []  # the library or None, as soon as that is certain
_failures: list[str] = []


def call_library() -> CallLibrary | None:
    """The library, from the cache or built now; None if there can be none.

    A compiler that does not work is asked again when the next function is captured, a few times.
    """
    if not _found:
        try:
            with torch.inference_mode(False), torch.enable_grad():  # it is tried on tensors of every kind
                _found.append(_built_library() if _layouts_are_known() else None)
        except NoCompiler as error:
            _failures.append(error.problem)
            if len(_failures) < TRIES:
                return None
            _found.append(None)
    return _found[0]


def _built_library() -> CallLibrary | None:
    try:
        library = CallLibrary(library_of(CSource((), (source_text(),))))
        return library if _answers_rightly(library) else None
    except NoCompiler:
        raise
    except (BothwaysError, OSError, RuntimeError):  # it does not compile, or there are no such tensors here
        return None


def _layouts_are_known() -> bool:
    """Whether objects begin with a count and their type, and every function that is called is there."""
    if "t" in sys.abiflags or sys.implementation.name != "cpython":
        return False
    word = ctypes.sizeof(ctypes.c_void_p)
    if word != 8 or object.__basicsize__ != 2 * word:
        return False
    if any(ctypes.c_size_t.from_address(id(sample) + word).value != id(type(sample)) for sample in (3, "a", object)):
        return False
    if not all(hasattr(ctypes.pythonapi, name) for name in ("PyType_GetSlot", *PYTHON)):
        return False
    known = [*map(torch_compat.c_function, TORCH), *(ask() for _, ask in KNOWN.values())]
    return None not in known and torch_compat.device_code("cpu") is not None


# The tries that the library has to pass before it is trusted.


def _samples() -> list[torch.Tensor]:
    zeros = functools.partial(torch.zeros, device="cpu")
    return [
        *(zeros(2, 3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.int64, torch.bool)),
        zeros(3, 2, 4).transpose(0, 2),
        zeros(4, 4)[::2, 1:],
        zeros(1, 5).expand(3, 5),
        zeros(0, 3),
        zeros(()),
        torch.zeros(2, 3, device="meta"),
        torch.nn.Parameter(zeros(2, 3)),
        zeros(2, 3).requires_grad_(),
        zeros(2, 3, dtype=torch.complex64),
        *torch_compat.put_off(zeros(2, 3, dtype=torch.complex64)),
    ]


def _answers_rightly(library: CallLibrary) -> bool:
    """Whether the library finds each sample like itself and unlike the others, exactly where they differ."""
    samples = _samples()
    checks = [(one, library.like(one)) for one in samples]
    if not all(is_like(other) is _alike(one, other) for one, is_like in checks for other in samples):
        return False
    if not _notices_changes(library):
        return False
    one, other, third = samples[0], samples[1], torch.zeros(8, dtype=torch.float64, device="cpu")
    library.remembers_from = REMEMBERED_FROM if remembers_rightly(library.check) else None
    library.makes_tensors = library.makes_tensors and makes_rightly(library.making)
    are_apart = library.apart(3, range(3))
    with torch.inference_mode():
        refusing = torch.zeros(2, device="cpu")
    ends = third[6:], third, refusing
    return are_apart(one, other, third[2:]) and not any(are_apart(one, third[:2], end) for end in ends)


def _notices_changes(library: CallLibrary) -> bool:
    """Whether a stamp holds until its dictionary is changed, and no longer."""
    for dictionary, change in sample_changes():
        stamp = NamesStamp("sample", dictionary, {name: dictionary.get(name, MISSING) for name in ("name", "value")})
        kind, numbers = stamp.packed()
        holds = library.check([Row(kind, data=ctypes.addressof(numbers))], 0, 0)
        if not (holds() and holds()):  # compared at first, known then
            return False
        change()
        if holds():
            return False
    return True


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (type(one), one.dtype, one.shape, one.stride(), one.device, one.requires_grad) == (
        type(other), other.dtype, other.shape, other.stride(), other.device, other.requires_grad,
    )  # fmt: skip
    # Memory is asked for where there is some.
    return same and (torch_compat.has_plain_memory(other) or not torch_compat.has_plain_memory(one))
