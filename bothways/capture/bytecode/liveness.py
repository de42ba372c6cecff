"""Which variables the rest of a frame may still read: what a continuation has to be given."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.instructions import decode, free_names
from bothways.runtime.resume import slots_of

if TYPE_CHECKING:
    from bothways.capture.bytecode.instructions import Decoded, Instruction

# Instructions after which the next one is not reached.
_LEAVES = frozenset("RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE".split())
_JUMPS_ALWAYS = frozenset("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT".split())
_STORES = frozenset("STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_MAYBE_NULL".split())
_ABOUT_VARIABLES = ("_FAST", "_DEREF", "_CELL", "_CLOSURE")
# Functions that see all variables of the frame that calls them.
FRAME_READERS = frozenset(
    "locals vars dir eval exec _getframe currentframe breakpoint breakpointhook set_trace embed stack print_stack "
    "extract_stack format_stack".split()
)


# Packages whose functions of these names are something else: ``torch.stack``, ``numpy.stack``.
_NO_READERS = ("torch", "numpy")
_OF_SOMETHING = frozenset("LOAD_ATTR LOAD_METHOD".split())
_SETS_IT = frozenset("STORE_ATTR DELETE_ATTR".split())


def live_variables(code: types.CodeType, globals_: dict[str, Any]) -> tuple[frozenset[str], ...]:
    """For each instruction the variables of the frame that may be read from there on, before they are set."""
    if _frame_is_read(code, globals_):
        return (frozenset(slots_of(code) + free_names(code)),) * len(decode(code).instructions)
    return _live_variables(code)


def _frame_is_read(code: types.CodeType, globals_: dict[str, Any]) -> bool:
    """Whether something is called by the name of a function that sees all variables.

    As an attribute such a name counts where it may be a module's: ``model.eval()`` and ``self.embed(x)`` are harmless.
    """
    if FRAME_READERS.isdisjoint(code.co_names):
        return False
    instructions = decode(code).instructions
    for index, instruction in enumerate(instructions):
        if instruction.argval not in code.co_names or instruction.argval not in FRAME_READERS:
            continue
        if instruction.name in _SETS_IT:
            continue
        while instructions[index].name in _OF_SOMETHING:
            index -= 1
        if instructions[index] is instruction or _may_lead_to_readers(instructions[index], code, globals_):
            return True
    return False


def _may_lead_to_readers(root: Instruction, code: types.CodeType, globals_: dict[str, Any]) -> bool:
    if root.name in ("LOAD_GLOBAL", "LOAD_NAME"):
        module = globals_.get(root.argval)
        return isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] not in _NO_READERS
    if "_FAST" in root.name:
        return any(instruction.name == "IMPORT_NAME" for instruction in decode(code).instructions)
    return "DEREF" in root.name or "IMPORT" in root.name


@lru_cache(maxsize=1024)
def _live_variables(code: types.CodeType) -> tuple[frozenset[str], ...]:
    decoded = decode(code)
    slots = {name: 1 << index for index, name in enumerate(slots_of(code) + free_names(code))}
    live = _solve(decoded, slots)
    if "super" in code.co_names and "__class__" in code.co_freevars:
        # super() reads the first argument without an instruction that says so.
        live = [bits | slots[code.co_varnames[0]] for bits in live] if code.co_argcount else live
    return tuple(frozenset(name for name, bit in slots.items() if bit & bits) for bits in live)


def _solve(decoded: Decoded, slots: dict[str, int]) -> list[int]:
    instructions = decoded.instructions
    live = [0] * (len(instructions) + 1)
    effects = [_effect(instruction, slots) for instruction in instructions]
    rows = map(decoded.handler_for, range(len(instructions)))
    handlers = [None if row is None else row.target for row in rows]
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            instruction = instructions[index]
            after = 0
            if instruction.name not in _LEAVES and instruction.name not in _JUMPS_ALWAYS:
                after = live[index + 1]
            if instruction.target >= 0:
                after |= live[instruction.target]
            read, written = effects[index]
            before = read | after & ~written
            handler = handlers[index]
            if handler is not None:
                before |= live[handler]
            if before != live[index]:
                live[index], changed = before, True
    return live


def _effect(instruction: Instruction, slots: dict[str, int]) -> tuple[int, int]:
    """What an instruction reads and what it sets for sure; cells are only ever read, since others see them."""
    if not any(word in instruction.name for word in _ABOUT_VARIABLES):
        return 0, 0
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    bits = [slots.get(name, 0) for name in names]
    if instruction.name == "STORE_FAST_LOAD_FAST":
        stored, loaded = bits
        return loaded & ~stored, stored
    if instruction.name in _STORES:
        return 0, sum(set(bits))
    read = 0
    for bit in bits:
        read |= bit
    return read, 0
