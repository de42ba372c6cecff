"""The C around calls: a table says what Python says, about every kind of tensor, and kernels get their memory."""

import collections
import contextlib
import ctypes
import os
import struct
import sys
import threading
import weakref

import pytest
import torch
from pythons import run_python

import bothways
from bothways import torch_compat
from bothways.calls.call_library import call_library, entry, same
from bothways.calls.guard_rows import Address, Row, facts_of

LIBRARY = call_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="no C compiler")


def holds(value, *rows, slots=1):
    """What a table of rows says about one argument."""
    return LIBRARY.check(rows, slots, 1)(value)


# Tensors


class Subclass(torch.Tensor):
    pass


def tensors():
    x = torch.arange(24.0).reshape(2, 3, 4)
    yield "plain", x
    yield "another of its kind", x + 1
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool, torch.complex64):
        yield str(dtype), x.to(dtype)
    yield "float8", x.to(torch.float8_e4m3fn)
    yield "transposed", x.transpose(1, 2)
    yield "permuted to the same shape", torch.zeros(4, 3, 2).permute(2, 1, 0)
    yield "expanded", torch.zeros(1, 3, 4).expand(2, 3, 4)
    yield "one dimension less", x[0]
    yield "scalar", torch.zeros(())
    yield "empty", torch.zeros(2, 0, 4)
    yield "one of size 1", torch.zeros(1, 3, 4)
    yield "meta", x.to("meta")
    yield "Parameter", torch.nn.Parameter(x.clone())
    yield "frozen Parameter", torch.nn.Parameter(x.clone(), requires_grad=False)
    yield "Buffer", torch.nn.Buffer(x.clone())
    yield "leaf", x.clone().requires_grad_()
    yield "not a leaf", x.clone().requires_grad_() * 2
    yield "subclass", x.clone().as_subclass(Subclass)
    yield "conjugated", x.to(torch.complex64).conj()
    yield "sparse", x.to_sparse()
    yield "compressed", x[0].to_sparse_csr()
    yield "nested", torch.nested.nested_tensor([x[0], x[0, :2]])
    yield "mkldnn", x.to_mkldnn()
    emptied = x.clone()
    emptied.untyped_storage().resize_(0)
    yield "no storage", emptied
    with torch.inference_mode():
        yield "inference", x.clone()


TENSORS = dict(tensors())
STRIDED = {name: tensor for name, tensor in TENSORS.items() if name not in ("sparse", "compressed", "nested", "mkldnn")}


def kind(tensor):
    return (type(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)


@needs_library
@pytest.mark.parametrize("name", [name for name in STRIDED if name != "subclass"])
def test_a_tensor_is_like_those_of_its_kind_and_no_others(name):
    is_like, memory = LIBRARY.like(TENSORS[name]), torch_compat.has_plain_memory
    for other, tensor in TENSORS.items():
        expected = other in STRIDED and kind(tensor) == kind(TENSORS[name])
        expected = expected and (memory(tensor) or not memory(TENSORS[name]))
        assert is_like(tensor) is expected, other


@needs_library
def test_things_that_are_no_tensors_are_not_looked_at():
    is_like = LIBRARY.like(torch.zeros(2))
    assert [is_like(other) for other in (None, 3, "x", [], torch, torch.Tensor, object())] == [False] * 7


@needs_library
@pytest.mark.parametrize("size", [(4,), (2, 3), (1, 5)])
def test_facts_are_asked_one_by_one(size):
    x = torch.zeros(size)
    everything = facts_of(x)
    others = {"dtype": x.double(), "sizes": torch.zeros(7, *size), "device_type": x.to("meta")}
    for fact, other in others.items():
        only = type(everything)(**{fact: getattr(everything, fact)})
        row = Row("TENSOR", data=only)
        assert holds(x, row) is True
        assert holds(other, row) is False
        assert holds(x.clone().requires_grad_(), row) is True


@needs_library
def test_changes_of_a_tensor_in_place_are_seen():
    x = torch.nn.Parameter(torch.zeros(2, 3))
    is_like = LIBRARY.like(x)
    assert is_like(x) is True
    x.requires_grad_(False)
    assert is_like(x) is False
    x.requires_grad_(True)
    x.data = torch.zeros(3, 2).t()
    assert x.shape == (2, 3) and is_like(x) is False
    x.data = torch.zeros(2, 3)
    assert is_like(x) is True
    x.data = torch.zeros(2, 3, dtype=torch.float64)
    assert is_like(x) is False
    plain = torch.zeros(2, 3)
    is_like = LIBRARY.like(plain)
    assert is_like(plain.resize_(3, 2)) is False
    assert is_like(plain.resize_(2, 3)) is True
    assert is_like(plain.t_()) is False


# Everything else: value, row, what Python says


class Point:
    def __init__(self):
        self.x, self.y = 1, {}


class Truthless:
    def __bool__(self):
        raise ValueError


class Keyed(dict):
    def __getitem__(self, key):
        return "other"


ORDERED = collections.OrderedDict(a=1, b=2)
ORDERED.move_to_end("a")
A, B = "a", "b"
POINT = Point()

ROWS = [
    ({}, Row("TYPE", object=dict), True),
    (ORDERED, Row("TYPE", object=dict), False),
    (True, Row("TYPE", object=int), False),
    (None, Row("IS", object=None), True),
    (0, Row("IS", object=None), False),
    (0, Row("IS", object=None, flag=False), True),
    (POINT, Row("IS_WEAKLY", object=weakref.ref(POINT)), True),
    (3, Row("IS_WEAKLY", object=weakref.ref(POINT)), False),
    (3, Row("SAME", data=0), True),
    (3, Row("SAME", data=0, flag=False), False),
    ({}, Row("TRUE", flag=False), True),
    ({}, Row("TRUE"), False),
    ([0], Row("TRUE"), True),
    ("", Row("TRUE", flag=False), True),
    (Truthless(), Row("TRUE"), False),
    (Truthless(), Row("TRUE", flag=False), False),
    (2.0, Row("EQUAL", object=2), True),
    (2.5, Row("EQUAL", object=2), False),
    ("a" * 3, Row("EQUAL", object="aaa"), True),
    (torch.zeros(3), Row("EQUAL", object=2), False),
    ((1, 2), Row("LENGTH", data=2), True),
    ((1,), Row("LENGTH", data=2), False),
    (5, Row("LENGTH", data=2), False),
    ({A: 1, B: 2}, Row("KEYS", object=(A, B), data=2), True),
    ({B: 1, A: 2}, Row("KEYS", object=(A, B), data=2), False),
    ({A: 1}, Row("KEYS", object=(A, B), data=2), False),
    ({A: 1, B: 2, "c": 3}, Row("KEYS", object=(A, B), data=2), False),
    ({"".join(["a", ""]): 1, 1.0: 2}, Row("KEYS", object=("a", 1), data=2), True),
    (ORDERED, Row("KEYS", object=(B, A), data=2), True),
    (ORDERED, Row("KEYS", object=(A, B), data=2), False),
    (5, Row("KEYS", object=(A, B), data=2), False),
    ({A: 1}, Row("CONTAINS", object=A), True),
    ({A: 1}, Row("CONTAINS", object=B), False),
    ({A: 1}, Row("CONTAINS", object=B, flag=False), True),
    ({A: 1}, Row("CONTAINS", object=[], flag=False), False),
    (5, Row("CONTAINS", object=B, flag=False), False),
    ({A: 1}, Row("ITEM", object=A, to=1), True),
    ({A: 1}, Row("ITEM", object=B, to=1), False),
    ({A: 1}, Row("ITEM", object=[], to=1), False),
    ([1], Row("ITEM", object=0, to=1), True),
    ([1], Row("ITEM", object=1, to=1), False),
    (5, Row("ITEM", object=1, to=1), False),
    (Keyed(), Row("ITEM", object=A, to=1), True),
    (Keyed(), Row("ITEM_OF_BASE", object=A, other=dict.__getitem__, to=1), False),
    (POINT, Row("ATTRIBUTE", object="x", to=1), True),
    (POINT, Row("ATTRIBUTE", object="z", to=1), False),
    (POINT, Row("DICTIONARY", object="__dict__", to=1), True),
    (POINT, Row("OBJECT", object=POINT, to=1), True),
    (POINT, Row("CALL", object=dict, to=1), True),
    (POINT, Row("CALL", object=iter, to=1), False),
]


@needs_library
@pytest.mark.parametrize("value, row, expected", ROWS, ids=lambda part: getattr(part, "operation", None))
def test_rows(value, row, expected):
    counts = [sys.getrefcount(thing) for thing in (value, row.object, row.other)]
    check = LIBRARY.check([row], 2, 1)
    for _ in range(100):
        assert check(value) is expected
    del check
    after = [sys.getrefcount(thing) for thing in (value, row.object, row.other)]
    # None, True and small numbers are counted all over the process.
    assert all(now <= before + 20 for before, now in zip(counts, after, strict=True))


@needs_library
def test_objects_are_distinct_or_not():
    for count in (2, 3, 17, 300):
        things = [object() for _ in range(count)]
        reads = [Row("ITEM", object=index, to=1 + index) for index in range(count)]
        table = LIBRARY.check([*reads, Row("DISTINCT", data=[count, *range(1, count + 1)])], count + 1, 1)
        assert table(things) is True
        for index in range(1, count, 7):
            assert table([*things[:index], things[0], *things[index + 1 :]]) is False


@pytest.mark.parametrize("library", [LIBRARY, None])
def test_objects_are_those_that_follow_them(library, monkeypatch):
    monkeypatch.setattr("bothways.calls.call_library.call_library", lambda: library)
    one, other = torch.zeros(2), torch.zeros(2)
    assert same(2)(one, other, one, other) and same(0)()
    assert not same(2)(one, other, other, one) and not same(1)(one, other)


@needs_library
def test_tensors_of_inference_mode_are_not_said_to_be_apart():
    with torch.inference_mode():
        refusing = torch.zeros(2)
    are_apart = LIBRARY.apart(2, [0, 1])
    assert are_apart(torch.zeros(2), torch.zeros(2))
    assert not are_apart(torch.zeros(2), refusing) and not are_apart(refusing, torch.zeros(2))


@needs_library
@pytest.mark.parametrize("plain", [True, False])
def test_a_tensor_is_found_among_keys_by_its_hash(plain):
    class Key(torch.Tensor):
        def __hash__(self):
            return 7

    one, other, third = torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), torch.zeros(2).as_subclass(Key)
    known = {one: "one", other: "other", third: "third"}
    expected = torch.Tensor.__hash__ if plain else None
    rows = [Row("PLAIN_CLASS", object=torch.Tensor, other="__hash__", data=Address(expected))]
    rows += [Row("OBJECT", to=1, object=known), Row("ENTRY", 1, to=2, data=0)]
    found = LIBRARY.check(rows, 3, 1, [2])
    assert [found(key) for key in (one, other, third)] == [("one",), ("other",), ("third",)]
    assert found(torch.zeros(2)) == (None,)
    with pytest.raises(TypeError, match="unhashable"):
        known.get([])
    assert found([]) is False  # what is not there is a miss


@needs_library
def test_what_was_read_is_handed_over_and_not_kept():
    point = Point()
    table = LIBRARY.check(
        [Row("ATTRIBUTE", object="y", to=1), Row("ATTRIBUTE", object="x", to=2)], slots=3, arguments=1, results=[2, 1]
    )
    point.y = Point()
    given = table(point)
    assert given == (1, point.y)
    kept = weakref.ref(point.y)
    del given, point
    assert kept() is None


@needs_library
def test_a_row_that_fails_lets_go_of_what_was_read():
    table = LIBRARY.check([Row("ATTRIBUTE", object="y", to=1), Row("TYPE", 1, object=int)], 2, 1)
    point = Point()
    point.y = Point()
    kept = weakref.ref(point.y)
    assert table(point) is False
    del point
    assert kept() is None


@needs_library
def test_only_exceptions_are_answers():
    class Raises:
        def __getitem__(self, error):
            raise error

    for error in (ValueError, StopIteration, MemoryError):
        assert LIBRARY.check([Row("ITEM", object=error, to=1)], 2, 1)(Raises()) is False
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            LIBRARY.check([Row("ITEM", object=error, to=1)], 2, 1)(Raises())


@needs_library
def test_fields_are_read_as_attributes_when_the_class_gets_one():
    class Owner:
        pass

    owner = Owner()
    owner.x = 1
    expected = {
        "x": 0,
        "__dict__": Address(Owner.__dict__["__dict__"]),
        "__getattribute__": Address(object.__getattribute__),
    }
    rows = [Row("PLAIN_CLASS", object=Owner, other=name, data=found) for name, found in expected.items()]
    rows += [Row("DICTIONARY", object="__dict__", to=1), Row("FIELD", object="x", data=1, to=2)]
    table = LIBRARY.check(rows, 3, 1, [2])
    assert table(owner) == (1,)
    Owner.x = property(lambda self: 2)
    assert table(owner) == (2,)
    Owner.x = 3  # what the instance has comes before it
    assert table(owner) == (1,)
    del Owner.x
    Owner.__getattribute__ = lambda self, name: 4
    assert table(owner) == (4,)
    del Owner.__getattribute__
    assert table(owner) == (1,)
    del owner.x
    assert table(owner) is False
    Owner.__getattr__ = lambda self, name: 5
    assert table(owner) == (5,)


@needs_library
def test_a_table_keeps_its_constants_and_goes_with_them():
    class Constant:
        pass

    constant = Constant()
    kept = weakref.ref(constant)
    table = LIBRARY.check([Row("IS", object=constant)], 1, 1)
    assert table(constant) is True
    del constant
    assert kept() is not None
    del table
    assert kept() is None


@needs_library
def test_many_threads_at_once():
    is_like = LIBRARY.like(torch.zeros(4))
    same, other, wrong = torch.zeros(4), torch.zeros(5), []

    def work():
        for _ in range(2000):
            if is_like(same) is not True or is_like(other) is not False:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Entering kernels


@contextlib.contextmanager
def entered(kinds, given):
    """An entry that notes what a kernel would be given."""

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))
    def kernel(array):
        given.append(array[: len(kinds)])

    yield entry(ctypes.cast(kernel, ctypes.c_void_p).value, kinds, kernel)


@pytest.mark.parametrize("library", ["C", "ctypes"])
def test_kernels_are_given_memory_and_numbers(library, monkeypatch):
    if library == "ctypes":
        monkeypatch.setattr("bothways.calls.call_library.call_library", lambda: None)
    x = torch.zeros(4, 4)
    values = [x, x[1:, 2:], torch.nn.Parameter(x), x.as_subclass(Subclass), 7, -1, 0.5, -1.0]
    given = []
    with entered("ppppnnff", given) as enter:
        assert enter(*values) is None
    bits = [int.from_bytes(struct.pack("d", value), sys.byteorder, signed=True) for value in (0.5, -1.0)]
    assert given == [[value.data_ptr() for value in values[:4]] + [7, -1] + bits]


@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_kernels_take_any_number_of_tensors(count):
    given, tensors = [], [torch.zeros(2) for _ in range(count)]
    with entered("p" * count, given) as enter:
        enter(*tensors)
    assert given == [[tensor.data_ptr() for tensor in tensors]]


def test_what_has_no_memory_raises_as_it_does_in_python():
    sparse = torch.zeros(2).to_sparse()
    with pytest.raises(Exception) as expected:
        sparse.data_ptr()
    given = []
    with entered("p", given) as enter:
        with pytest.raises(type(expected.value)) as raised:
            enter(sparse)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
        for wrong in (3, None):
            with pytest.raises(AttributeError):
                enter(wrong)
        with pytest.raises((TypeError, ValueError)):
            enter(torch.zeros(2), torch.zeros(2))
    with entered("n", given) as enter, pytest.raises((TypeError, struct.error)):
        enter("x")
    assert given == []


PROGRAM = """
import torch, bothways
from bothways.calls.call_library import call_library, entry

module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
compiled = bothways.compile(lambda x: module(x), backend="eager")
for x in (torch.ones(2, 4), torch.ones(3, 4), torch.ones(2, 4)):
    assert torch.equal(compiled(x), module(x))
print(call_library() is None, [program.table for program in bothways.explain(compiled).programs])
"""


def test_without_a_compiler_guards_are_python(tmp_path):
    surroundings = {**os.environ, "PATH": str(tmp_path), "BOTHWAYS_CACHE_DIR": str(tmp_path / "cache"), "CC": ""}
    done = run_python(["-c", PROGRAM], env=surroundings)
    assert done.stdout.startswith("True [None"), done.stderr


def test_whoever_says_so_has_python_guards():
    with bothways.config.patch(guards_in_c=False):
        compiled = bothways.compile(lambda x: x + 1, backend="eager")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert [program.table for program in bothways.explain(compiled).programs] == [None]


def test_where_a_tensor_lies_is_known():
    assert torch_compat.tensor_offset() is not None
