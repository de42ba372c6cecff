"""Where a number is among the arguments of recorded kernels: found by recording again, or not believed."""

import struct

import pytest

from bothways.replay.kernel_nodes import UNREAD, KernelNode, Parameters, slots_of
from bothways.replay.numbers import Expressions, is_ordinary


def node(*arguments, function=7):
    parameters = Parameters()
    parameters.function = function
    return KernelNode(1, parameters, [bytearray(argument) for argument in arguments])


def graph(address, rate, more=b""):
    """Three arguments: a pointer, a structure with a float and a double in it, and others."""
    return [node(struct.pack("q", address), struct.pack("ifd", 3, rate, 1 - rate * 0.5), more)]


def test_numbers_are_found_by_their_bytes():
    found = slots_of(graph(16, 0.3), graph(32, 0.3), graph(48, 0.7), [0.3, 0.85], [0.7, 0.65])
    places = [(slot.argument, slot.offset, slot.spelling, slot.number) for slot in found]
    assert places == [(1, 4, "f", 0), (1, 8, "d", 1)]


def test_what_else_depends_on_a_number_is_told():
    graphs = graph(16, 0.3, b"aaaa"), graph(32, 0.3, b"aaaa"), graph(48, 0.7, b"bbbb")
    assert "computed in C++" in slots_of(*graphs, [0.3, 0.85], [0.7, 0.65])
    assert "computed in C++" in slots_of(graph(16, 0.3), graph(32, 0.3), graph(48, 0.7), [0.3], [0.7])


def test_another_kernel_or_another_count_is_told():
    assert "which kernel" in slots_of([node(b"")], [node(b"")], [node(b"", function=8)], [], [])
    assert "what is launched" in slots_of([node(b"")], [node(b"")], [], [], [])
    assert "what is launched" in slots_of([(2, 1)], [(2, 1)], [(2, 5)], [], [])


def test_kernels_that_cannot_be_read_are_no_matter_where_numbers_are_in_our_own():
    graphs = [*graph(16, 0.3), UNREAD], [*graph(32, 0.3), UNREAD], [*graph(48, 0.7), UNREAD]
    assert "does not tell" in slots_of(*graphs, [0.3, 0.85], [0.7, 0.65])
    assert len(slots_of(*graphs, [0.3, 0.85], [0.7, 0.65], are_ours=True)) == 2


def test_what_lies_in_tables_that_are_not_filled_is_no_matter_where_numbers_are_in_our_own():
    """What a stack held before, or an operation of ATen's leaves unset, is alike in two recordings by chance."""
    graphs = graph(16, 0.3, b"aaaabb"), graph(32, 0.3, b"aaaabb"), graph(48, 0.7, b"ccccdd")
    assert "computed in C++" in slots_of(*graphs, [0.3, 0.85], [0.7, 0.65])
    slots = slots_of(*graphs, [0.3, 0.85], [0.7, 0.65], are_ours=True)
    assert [(slot.argument, slot.number) for slot in slots] == [(1, 0), (1, 1)]


@pytest.mark.parametrize("call, are_ours", [
    ("run_1(x, f0)", True), ("run_1(x, f0 * 2.0)", True), ("run_1(x, -f0)", True), ("run_1(x, int(f0))", False),
    ("run_1(x, f0 > 1.0)", False), ("run_1(x, by=f0)", False), ("at_mul(x, f0)", False),
])  # fmt: skip
def test_kernels_of_ours_take_numbers_as_they_are(call, are_ours):
    run = program(f"def run(f0, x):\n    {call}\n    return (x,)\n")
    assert Expressions(run, [0]).are_ours == are_ours


def test_numbers_that_operations_treat_specially_are_not_ordinary():
    assert all(map(is_ordinary, (0.3, 1e-3, -0.7, 1e-30)))
    assert not any(map(is_ordinary, (0.0, 1.0, -1.0, 2.0, 0.5, 1.5, 1e9, float("nan"), float("inf"))))


def program(source):
    import linecache

    label = f"<a test {len(source)}>"
    linecache.cache[label] = (len(source), None, source.splitlines(True), label)
    scope = {}
    exec(compile(source, label, "exec"), scope)
    return scope["run"]


@pytest.mark.parametrize(
    "head", ["def run(f0, n, x):\n", "def run(inputs):\n    [f0, n, x] = inputs\n    inputs.clear()\n"]
)
def test_a_programs_own_arithmetic_is_what_is_computed(head):
    lines = "v0 = (1.0 - (f0 * 0.01))", "y = at_add(x, alpha=(-f0))", "run_1(y, v0, n)", "return (y,)"
    run = program(head + "".join(f"    {line}\n" for line in lines))
    values = Expressions(run, [0])([0.3])
    assert not Expressions(run, [0]).are_ours and Expressions(run, [1]).are_ours
    assert {0.3, -0.3, 1.0 - 0.3 * 0.01, 0.3 * 0.01} <= set(values)
