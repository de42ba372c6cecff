"""What whoever calls a compiled graph has to know of it, in one place.

A compiled graph is a plain function, or an object that can be called, since programs and autograd nodes call it at
every hit; beside it, as its one attribute of ours, is this record. A function of another compiler's has none, and
is taken for one that promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bothways.runtime.spares import Spares

Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(frozen=True)
class CompiledGraph:
    """The facts of one compiled graph.

    ``takes_list``: it takes its inputs as one list, which it empties, so that memory is freed early.
    ``looks_at_grad_mode``: what it keeps for the backward may depend on whether gradients are enabled.
    ``is_below_autograd``: autograd need not be kept away from it.
    ``writes_at_end``: it changes its inputs when everything else is done, so that it can fail without a trace.
    ``read_inputs``: the inputs that it reads, where that is known.
    ``share``: what tells of inputs whether one that it changes shares memory with another.
    ``are_apart``: what tells of inputs that those which it changes share no memory and are not of inference mode; it is
    quick, and says no where it is not sure.
    ``look``: what gives a number for where inputs, as one tuple, lie: the same one until that changes. It is 0 where
    ``are_apart`` would say no.
    ``takes_together``: it takes tensors as one tuple, ``together``, behind numbers, and what ``look`` gave as ``seen``.
    ``at_once``: what gives the results for numbers and tensors, as two tuples, where one launch does all there is to
    do, changes of inputs counted; None, and nothing was done, where it does not. It looks at inputs itself.
    ``counts``: what is told how often inputs are changed, by their places among the tensors, for that.
    ``lends``: what is told from which result on only the backward of the graph sees them.
    ``leaves_out``: what is told that results from one on, if they are the inputs at certain places, need not be given.
    ``spares``: where gradients that go are left for it, which it may give again.
    ``key``: what it can be recalled by from the cache on disk.
    """

    takes_list: bool = False
    looks_at_grad_mode: bool = True
    is_below_autograd: bool = False
    writes_at_end: bool = False
    read_inputs: tuple[int, ...] | None = None
    share: Callable[..., bool] | None = None
    are_apart: Callable[..., bool] | None = None
    look: Callable[[tuple[Any, ...]], int] | None = None
    takes_together: bool = False
    at_once: Callable[[tuple[Any, ...], tuple[Any, ...]], Any] | None = None
    counts: Callable[[Mapping[int, int]], None] | None = None
    lends: Callable[[int], None] | None = None
    leaves_out: Callable[[int, Sequence[int]], None] | None = None
    spares: Spares | None = None
    key: str | None = None


UNKNOWN, TAKES_LIST = CompiledGraph(), CompiledGraph(takes_list=True)
GRAPH = "__bothways_graph__"  # the attribute
BOXED = "_boxed_call"  # and what PyTorch's compilers know functions by that take a list


def described(run: Run, **facts: Any) -> Run:
    """The same function, of which these facts are known as well."""
    known = replace(known_of(run), **facts)
    setattr(run, GRAPH, known)
    if known.takes_list:
        setattr(run, BOXED, True)
    return run


def known_of(run: Callable[..., Any]) -> CompiledGraph:
    """What is known of a compiled graph. A compiler of the user's may say, in PyTorch's way, that its graphs take a
    list."""
    known: CompiledGraph | None = getattr(run, GRAPH, None)
    if known is not None:
        return known
    return TAKES_LIST if getattr(run, BOXED, False) else UNKNOWN
