"""The kernels of a CUDA graph, with the bytes of their arguments: read, compared, and set for the next launch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bothways.building.cuda_driver import driver

KERNEL, MEMSET = 0, 2  # types of nodes
BUFFER, SIZE = 1, 2  # what is in ``extra``: CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE
MOST_ARGUMENTS = 4096
HIGH = 1 << 16  # what the upper halves of addresses are below
UNREAD = ("a kernel of a library, whose arguments the driver does not tell",)


class Parameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("blocks", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("arguments", ctypes.POINTER(ctypes.c_void_p)), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class NotRead(Exception):
    """The driver does not tell what is in a graph."""


@dataclass
class KernelNode:
    """A kernel, and its arguments one by one, or all in one buffer, which is not set."""

    handle: int
    parameters: Parameters
    arguments: list[bytearray]
    can_be_set: bool = True
    _places: Any = None  # where the arguments are, which stay there

    @property
    def kind(self) -> Any:
        """What it launches, but for the arguments."""
        known, sizes = self.parameters, tuple(map(len, self.arguments))
        return known.function, known.kernel, tuple(known.blocks), tuple(known.threads), known.shared, sizes

    def set(self, executable: int) -> None:
        """Have a graph that is launched next take these arguments."""
        if self._places is None:
            buffers = [(ctypes.c_char * len(one)).from_buffer(one) for one in self.arguments]
            self._places = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers)), buffers
            self.parameters.arguments = ctypes.cast(self._places[0], ctypes.POINTER(ctypes.c_void_p))
        _check(
            driver().cuGraphExecKernelNodeSetParams_v2(
                ctypes.c_void_p(executable), ctypes.c_void_p(self.handle), ctypes.byref(self.parameters)
            )
        )


def kernel_nodes(graph: int) -> list[Any]:
    """The nodes of a graph in order: kernels as such, of others what depends on numbers."""
    count = ctypes.c_size_t()
    _check(driver().cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    handles = (ctypes.c_void_p * count.value)()
    _check(driver().cuGraphGetNodes(ctypes.c_void_p(graph), handles, ctypes.byref(count)))
    return [_node(handle or 0) for handle in handles]


def _node(handle: int) -> Any:
    kind = ctypes.c_int()
    _check(driver().cuGraphNodeGetType(ctypes.c_void_p(handle), ctypes.byref(kind)))
    if kind.value == MEMSET:
        words = (ctypes.c_size_t * 16)()  # where it writes, the pitch, the value and the size of an element, …
        code = driver().cuGraphMemsetNodeGetParams(ctypes.c_void_p(handle), ctypes.byref(words))
        return UNREAD if code else (kind.value, tuple(words[1:5]))
    if kind.value != KERNEL:
        return (kind.value,)
    parameters = Parameters()
    if driver().cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(handle), ctypes.byref(parameters)):
        return UNREAD
    if not parameters.arguments:
        buffers = _in_buffer(parameters)
        return KernelNode(handle, parameters, buffers, False) if buffers or not _sizes(parameters) else UNREAD
    arguments = [
        bytearray(ctypes.string_at(parameters.arguments[place], size)) for place, size in enumerate(_sizes(parameters))
    ]
    return KernelNode(handle, parameters, arguments)


def _in_buffer(parameters: Parameters) -> list[bytearray]:
    """Arguments that libraries give as one buffer."""
    words = ctypes.cast(parameters.extra, ctypes.POINTER(ctypes.c_void_p))
    extras: dict[int, int] = {}
    for place in range(0, 8, 2):
        if not parameters.extra or not words[place]:
            break
        extras[words[place] or 0] = words[place + 1] or 0
    if BUFFER not in extras or SIZE not in extras:
        return []
    size = ctypes.c_size_t.from_address(extras[SIZE]).value
    return [bytearray(ctypes.string_at(extras[BUFFER], size))]


def _sizes(parameters: Parameters) -> list[int]:
    """How many bytes each argument of a kernel has."""
    of_function = bool(parameters.function)
    ask = driver().cuFuncGetParamInfo if of_function else driver().cuKernelGetParamInfo
    handle = ctypes.c_void_p(parameters.function if of_function else parameters.kernel)
    sizes: list[int] = []
    while len(sizes) < MOST_ARGUMENTS:
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        if ask(handle, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)):
            break
        sizes.append(size.value)
    return sizes


def _check(code: int) -> None:
    if code:
        raise NotRead(f"the driver's code is {code}")


@dataclass(frozen=True)
class Slot:
    """Where a number is: which node, which argument, how many bytes into it, as a double or not, and which number."""

    node: int
    argument: int
    offset: int
    spelling: str
    number: int


def slots_of(
    kept: Sequence[Any],
    same: Sequence[Any],
    other: Sequence[Any],
    now: Sequence[float],
    then: Sequence[float],
    are_ours: bool = False,
) -> list[Slot] | str:
    """Where numbers are in a graph, from one more that was recorded with the same numbers, whose memory is elsewhere,
    and one with others. A sentence where something else depends on them. With ``are_ours`` no kernel of a library has
    anything to do with them, and kernels of ours take them as they are: whatever else differs is where memory is, or
    what lies in tables of arguments that are not filled."""
    if UNREAD in kept and not are_ours:
        return "a number that changes may be in a kernel whose arguments the driver does not tell"
    if not len(kept) == len(same) == len(other):
        return "what is launched depends on a number that changes"
    slots: list[Slot] = []
    for number, nodes in enumerate(zip(kept, same, other, strict=True)):
        if not all(isinstance(node, KernelNode) for node in nodes):
            if not nodes[0] == nodes[1] == nodes[2]:
                return "what is launched depends on a number that changes"
            continue
        if not nodes[0].kind == nodes[1].kind == nodes[2].kind:
            return "which kernel is launched depends on a number that changes"
        known = len(slots)
        for place, arguments in enumerate(zip(*(node.arguments for node in nodes), strict=True)):
            is_known = _add_slots(slots, number, place, arguments, now, then, are_ours)
            if not is_known or not (nodes[0].can_be_set or len(slots) == known):
                return "a kernel gets what is computed in C++ from a number that changes"
    return slots


def _add_slots(
    slots: list[Slot],
    node: int,
    place: int,
    arguments: Sequence[bytearray],
    now: Sequence[float],
    then: Sequence[float],
    are_ours: bool,
) -> bool:
    """Note the numbers in an argument; False where something in it is computed from them."""
    kept, same, other = arguments
    if same == other:
        return True
    covered = -1
    for offset in range(0, len(kept) - 3, 4):
        words = [bytes(one[offset : offset + 4]) for one in arguments]
        if offset <= covered or words[1] == words[2] or words[0] != words[1]:
            continue  # nothing of a number's: what differs between equal numbers is where memory is
        if all(0 < int.from_bytes(word, "little") < HIGH for word in words):
            continue  # the upper half of an address; of a double it is the lower one, whose upper one differs as well
        slot = _slot_at(kept, other, offset, now, then)
        if slot is None and are_ours:
            continue
        if slot is None:
            return False
        begin, spelling, number = slot
        slots.append(Slot(node, place, begin, spelling, number))
        covered = begin + struct.calcsize(spelling) - 4
    tail = len(kept) % 4
    return are_ours or not tail or same[-tail:] == other[-tail:]


def _slot_at(
    kept: bytearray, other: bytearray, offset: int, now: Sequence[float], then: Sequence[float]
) -> tuple[int, str, int] | None:
    """The number at an offset, or a word before it."""
    for begin, spelling in ((offset, "d"), (offset - 4, "d"), (offset, "f")):
        size = struct.calcsize(spelling)
        if begin < 0 or begin + size > len(kept):
            continue
        for number, (before, after) in enumerate(zip(now, then, strict=True)):
            numbers = bytes(kept[begin : begin + size]), bytes(other[begin : begin + size])
            if before != after and numbers == (_packed(spelling, before), _packed(spelling, after)):
                return begin, spelling, number
    return None


def _packed(spelling: str, number: float) -> bytes:
    try:
        return struct.pack(spelling, number)
    except OverflowError:  # no float is so large
        return b""
