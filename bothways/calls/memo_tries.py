"""Whether what C remembers of a table is trusted: every kind of change to what was read has to be noticed.

Comes in: what makes checks of rows. Goes out: yes or no; with no, tables are walked at every check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.guard_rows import Row, facts_of


class Sample:
    """An instance whose dictionary leads to a dictionary, a list, a function's closure, and a tensor."""

    def __init__(self) -> None:
        tensor = torch.zeros(2, 3, device="cpu")
        self.numbers: Any = {"rate": 0.5, "count": int("1000")}
        self.items: Any = [tensor, {}]
        self.read: Any = _closure_of(tensor)


def _closure_of(tensor: torch.Tensor) -> Callable[[], Any]:
    return lambda: tensor


def _count_on(sample: Sample) -> None:
    """The second number lies where the one was that was read."""
    for _ in range(2):
        sample.numbers["count"] += 1


def sample_rows() -> list[Row]:
    """What is asked of a sample, the one argument."""
    like = facts_of(torch.zeros(2, 3, device="cpu"))
    hooks = [Row("ATTRIBUTE", 4, 8, object=torch_compat.HOOKS), Row("ATTRIBUTE", 4, 9, object=torch_compat.LATE_HOOKS)]
    return [
        Row("TYPE", 0, object=Sample),
        Row("DICTIONARY", 0, 1, object="__dict__"),
        Row("FIELD", 0, 2, object="numbers", data=1),
        Row("TYPE", 2, object=dict),
        Row("KEYS", 2, object=("rate", "count"), data=2),
        Row("FIELD", 0, 3, object="items", data=1),
        Row("LENGTH", 3, data=2),
        Row("ITEM", 3, 4, object=0),
        Row("TYPE", 4, object=torch.Tensor),
        Row("TENSOR", 4, data=like),
        Row("GRADIENT", 4, flag=False, object="requires_grad", other=torch_compat.REQUIRES_GRAD),
        Row("ITEM", 2, 5, object="rate"),
        Row("TYPE", 5, object=float),
        Row("ITEM", 2, 6, object="count"),
        Row("EQUAL", 6, object=1000),
        Row("ITEM", 3, 7, object=1),
        Row("TRUE", 7, flag=False),
        *hooks,
        Row("TRUE", 8, flag=False),
        Row("TRUE", 9, flag=False),
        Row("FIELD", 0, 10, object="read", data=1),
        Row("ATTRIBUTE", 10, 11, object="__closure__"),
        Row("ITEM", 11, 12, object=0),
        Row("ATTRIBUTE", 12, 13, object="cell_contents"),
        Row("SAME", 13, data=4),
    ]


SLOTS = 14


def changes() -> Iterator[tuple[Callable[[Sample], object], bool]]:
    """What may happen to a sample, and whether the rows hold after that."""
    other = torch.zeros(2, 3, device="cpu")
    yield lambda sample: None, True
    yield lambda sample: sample.numbers.update(rate=0.25), True
    yield lambda sample: sample.numbers.update(rate=1), False
    yield lambda sample: sample.numbers.update(count=4), False
    yield lambda sample: sample.numbers.update(count=int("1000")), True
    yield _count_on, False
    yield lambda sample: sample.numbers.update(more=1), False
    yield lambda sample: sample.numbers.pop("rate"), False
    yield lambda sample: setattr(sample, "numbers", {"rate": 0.5, "count": int("1000")}), True
    yield lambda sample: setattr(sample, "numbers", [0.5, 3]), False
    yield lambda sample: setattr(sample, "more", 1), True
    yield lambda sample: sample.__dict__.pop("items"), False
    yield lambda sample: setattr(sample, "__dict__", {}), False
    yield lambda sample: setattr(sample, "__dict__", dict(vars(sample))), True
    yield lambda sample: sample.items.append(1), False
    yield lambda sample: sample.items[1].update(more=1), False
    yield lambda sample: sample.items.__setitem__(1, {1: 2}), False
    yield lambda sample: sample.items.__setitem__(0, other), False
    yield lambda sample: setattr(sample, "read", _closure_of(other)), False
    yield lambda sample: setattr(sample.read.__closure__[0], "cell_contents", other), False
    yield lambda sample: sample.items[0].requires_grad_(), False
    yield lambda sample: sample.items[0].t_(), False
    yield lambda sample: sample.items[0].resize_(3, 2), False
    yield lambda sample: sample.items[0].unsqueeze_(0), False
    yield lambda sample: sample.items[0].add_(1), True
    yield lambda sample: setattr(sample.items[0], "data", other.double()), False
    yield lambda sample: setattr(sample.items[0], "data", other), True
    yield lambda sample: setattr(sample.items[0], "data", torch_compat.put_off(other.to(torch.complex64))[0]), False
    yield lambda sample: setattr(sample.items[0], "_backward_hooks", {1: abs}), False


def remembers_rightly(check: Callable[..., Callable[..., Any]]) -> bool:
    """Whether each change is noticed, once what was read is remembered; ``check`` makes a function of rows."""
    try:
        return all(_is_noticed(check(sample_rows(), SLOTS, 1), *one) for one in changes())
    except RuntimeError:  # this PyTorch lets no such change happen
        return False


def _is_noticed(holds: Callable[..., Any], change: Callable[[Sample], object], expected: bool) -> bool:
    sample = Sample()
    if not all(holds(sample) for _ in range(3)):
        return False
    change(sample)
    return [holds(sample) for _ in range(3)] == [expected] * 3
