"""Routines of kernels on a GPU as builtin functions of Python's, which launch them all on the current stream.

A second small library, like that of ``call_library.py``, is built where there is a GPU. Without it kernels are launched
through ctypes, which takes a few times as long.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bothways import torch_compat
from bothways.building.build import CSource, library_of
from bothways.building.cuda_build import AS_GIVEN, BEHIND, LITERAL, Launch, Loaded
from bothways.building.cuda_driver import DeviceContext, check, context, driver, launch, raise_error
from bothways.calls.bound_names import PYTHON, TORCH, makers, text_with_names
from bothways.calls.call_library import call_library
from bothways.calls.entry_source import ENTER, FRACTION, POINTER, SPELLING
from bothways.calls.launch_source import DRIVER, LAUNCH, STREAM
from bothways.errors import BothwaysError

MOST_ARGUMENTS = 4096
UNFILLED = 512  # words that a table may have behind the arguments of a launch, and a few more


def launcher(loaded: Loaded, name: str, kinds: str) -> Callable[..., None]:
    """A function of tensors and numbers that launches the kernels of a routine with what they hold."""
    launches = loaded.routines[name]
    make = _make_launch()
    if make is None or any(len(one.arguments) > MOST_ARGUMENTS for one in launches):
        return _through_ctypes(loaded, launches, kinds)
    words: list[int] = []
    for one in launches:
        words += [loaded.functions[one.kernel], one.blocks, one.threads, one.shared, len(one.arguments)]
        words += [word for argument in one.arguments for word in argument]
    most = max((len(one.arguments) for one in launches), default=0) + UNFILLED
    head = [len(kinds), len(launches), loaded.device, context(loaded.device), most, len(words)]
    plan = struct.pack(f"{len(head) + len(words)}q", *head, *words) + kinds.encode()
    entry: Callable[..., None] = make((plan, raise_error), loaded)
    return entry


def launchers(loaded: Loaded, kinds: Mapping[str, str]) -> dict[str, Callable[..., None]]:
    return {name: launcher(loaded, name, letters) for name, letters in kinds.items()}


def one_by_one(loaded: Loaded, name: str, kinds: str, after: Callable[[], None]) -> Callable[..., None]:
    """The same, which calls ``after`` when it has launched a kernel, and once before."""
    return _through_ctypes(loaded, loaded.routines[name], kinds, after)


def _through_ctypes(
    loaded: Loaded, launches: Sequence[Launch], kinds: str, after: Callable[[], None] | None = None
) -> Callable[..., None]:
    def run(*values: Any) -> None:
        numbers = [_word(value, kind) for value, kind in zip(values, kinds, strict=True)]
        stream = torch_compat.current_raw_stream(loaded.device)
        with DeviceContext(loaded.device):
            if after is not None:
                after()
            for one in launches:
                # Side by side: they may be one table, of which only the beginning is filled.
                words = (ctypes.c_uint64 * max(MOST_ARGUMENTS, len(one.arguments)))()
                for place, argument in enumerate(one.arguments):
                    words[place] = _argument(numbers, *argument) % 2**64
                function = loaded.functions[one.kernel]
                check(launch(function, one.blocks, one.threads, one.shared, stream, words))
                if after is not None:
                    after()

    return run


def _argument(numbers: Sequence[int], one: int, kind: int, other: int) -> int:
    if kind == LITERAL:
        return other
    if kind == AS_GIVEN:
        return numbers[one]
    return numbers[one] + (other if kind == BEHIND else numbers[other])


def _word(value: Any, kind: str) -> int:
    """What a tensor or a number is as eight bytes."""
    if kind == POINTER:
        address: int = value.data_ptr()
        return address
    [word] = struct.unpack("Q", struct.pack(SPELLING[FRACTION] if kind == FRACTION else "q", value))
    return int(word)


@functools.cache
def _make_launch() -> Any:
    """What makes a builtin function of a plan; None where there can be none."""
    functions = {**PYTHON, **TORCH, **STREAM, **DRIVER}
    homes: list[Any] = [getattr(ctypes.pythonapi, name, None) for name in PYTHON]
    homes += [torch_compat.c_function(name) for name in (*TORCH, *STREAM)]
    homes += [getattr(driver(), name, None) for name in DRIVER]
    assert len(homes) == len(functions)  # a name that is there twice would give each one behind it another's address
    if call_library() is None or None in homes:  # whose tries show that tensors are what they are taken for
        return None
    try:
        library = library_of(CSource((), (text_with_names(functions, ENTER, LAUNCH),)))
    except (BothwaysError, OSError, RuntimeError):
        return None
    [make] = makers(library, homes, "make_launch")
    return make
