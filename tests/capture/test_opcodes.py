"""The opcode tables: every instruction a compiler can emit has a row, and decoding finds jumps and handlers."""

import dis
import sys

import pytest
import torch

import bothways
from bothways.capture.bytecode.instructions import decode, exception_table
from bothways.capture.bytecode.opcodes import VERSIONS, handler_table
from bothways.capture.bytecode.opcodes.common import unknown_opcode
from bothways.errors import Unsupported

# What the compiler uses between its own passes, and what only the interpreter itself puts into code.
NEVER_EMITTED = set(
    "SETUP_FINALLY SETUP_CLEANUP SETUP_WITH POP_BLOCK JUMP JUMP_NO_INTERRUPT LOAD_METHOD LOAD_SUPER_METHOD "
    "LOAD_ZERO_SUPER_METHOD LOAD_ZERO_SUPER_ATTR STORE_FAST_MAYBE_NULL LOAD_CLOSURE "
    "ANNOTATIONS_PLACEHOLDER JUMP_IF_TRUE JUMP_IF_FALSE "
    "INTERPRETER_EXIT RESERVED ENTER_EXECUTOR EXIT_INIT_CHECK".split()
)


def test_every_instruction_of_this_version_has_a_row():
    table, unknown = handler_table()
    names = {name for name in dis.opmap if not name.startswith("INSTRUMENTED_")}
    assert names - set(table) - NEVER_EMITTED == set()
    assert unknown is unknown_opcode and unknown_opcode not in table.values()


def test_every_supported_version_is_listed():
    assert sys.version_info[:2] in VERSIONS


def jumps(x, n):
    for i in range(n):
        try:
            if i and x is not None:
                continue
        except ValueError:
            pass
    return x


def test_jumps_lead_to_instructions():
    decoded = decode(jumps.__code__)
    assert decode(jumps.__code__) is decoded
    names = [instruction.name for instruction in decoded.instructions]
    targets = [inst.target for inst in decoded.instructions if "JUMP" in inst.name or inst.name == "FOR_ITER"]
    assert targets and all(0 <= target < len(names) for target in targets)
    loop = next(inst for inst in decoded.instructions if inst.name == "FOR_ITER")
    backwards = [inst for inst in decoded.instructions if inst.name == "JUMP_BACKWARD"]
    assert all(decoded.instructions[inst.target] is loop for inst in backwards)


def test_handlers_cover_the_instructions_of_their_block():
    decoded = decode(jumps.__code__)
    rows = exception_table(jumps.__code__)
    assert len(rows) == len(decoded.handlers) > 0
    for row in decoded.handlers:
        assert row.start < row.end <= len(decoded.instructions) and row.target < len(decoded.instructions)
    first = decoded.handlers[0]
    assert decoded.handler_for(first.start) is first
    assert decoded.instructions[first.target].name == "PUSH_EXC_INFO"
    assert decoded.handler_for(0) is None


def test_instructions_know_their_source_lines():
    first = jumps.__code__.co_firstlineno
    lines = {inst.line - first for inst in decode(jumps.__code__).instructions}
    assert {0, 1, 3, 5, 7} <= lines <= set(range(8))


LEFT_TO_PYTHON = {
    "class_definition": "def program(x):\n    class Made: pass\n    return x + 1",
    "opcode_unknown": "def program(x):\n    try: raise ValueError(x + 1)\n    except* ValueError: pass",
    "async": "def program(x):\n    async def inner(): await x\n    return inner(), x + 1",
    "import": "def program(x):\n    import a_module_that_is_not_there\n    return x + 1",
}


@pytest.mark.parametrize("code", LEFT_TO_PYTHON)
def test_what_is_left_to_python_says_so(code):
    space = {}
    exec(LEFT_TO_PYTHON[code], space)
    with pytest.raises(Unsupported) as caught:
        bothways.compile(space["program"], backend="eager", fullgraph=True)(torch.ones(2))
    assert caught.value.break_.code == code and caught.value.break_.where.line > 0


def test_without_fullgraph_they_run_as_plain_python():
    def program(x):
        class Made:
            scale = 3

        return x * Made.scale

    assert torch.equal(bothways.compile(program, backend="eager")(torch.ones(2)), torch.full((2,), 3.0))
