"""Stamps as C checks them: compared once, and again only after the dictionary behind them has changed."""

import ctypes
import gc
import sys
import types

import pytest

from bothways.calls.call_library import call_library
from bothways.calls.guard_rows import Row
from bothways.runtime.stamps import MISSING, NamesStamp, sample_changes, version_offset


def test_dictionaries_have_versions_up_to_python_313():
    assert (version_offset() > 0) == (sys.version_info < (3, 14))


@pytest.mark.parametrize("number", range(len(sample_changes())))
def test_a_stamp_in_c_notices_every_kind_of_change(number):
    changes = sample_changes()
    for _, change in changes[:number]:
        change()
    dictionary, change = changes[number]
    stamp = NamesStamp("sample", dictionary, {name: dictionary.get(name, MISSING) for name in ("name", "value")})
    holds = in_c(stamp)
    assert [holds() for _ in range(3)] == [True] * 3 and stamp.holds()
    change()
    assert [holds() for _ in range(3)] == [False] * 3 and not stamp.holds()


def in_c(stamp):
    """The check of a stamp as programs have it; the library is built here, as it is everywhere else."""
    kind, numbers = stamp.packed()
    return call_library().check([Row(kind, data=ctypes.addressof(numbers))], 0, 0)


def test_a_stamp_in_c_holds_again_when_all_is_as_it_was():
    namespace = {"value": 0, "other": 0}
    stamp = NamesStamp("sample", namespace, {"value": 0})
    holds = in_c(stamp)
    for _ in range(3):
        assert holds()
        namespace["value"] = 1
        assert not holds() and not holds()
        namespace["value"] = 0
        assert holds() and holds()
        namespace["other"] += 1  # of which the stamp says nothing
    namespace.clear()
    assert not holds()


def test_a_stamp_in_c_notices_what_specialized_code_stores():
    """Python writes into dictionaries by shortcuts after a while."""
    module = types.ModuleType("example")

    class Example:
        name = None

    def store(owner, value):
        owner.name = value

    for owner, names in ((module, vars(module)), (Example, gc.get_referents(Example.__dict__)[0])):
        for turn in range(100):
            store(owner, turn)
        holds = in_c(stamp := NamesStamp("sample", names, {"name": 99}))
        for turn in range(50):
            assert holds() and holds() and stamp.holds()
            store(owner, str(turn))
            assert not holds()
            store(owner, 99)
