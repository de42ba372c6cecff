"""Which sizes and numbers change from call to call: what one compiled function has met so far, by where it was found.

The first program of a function is made for the sizes of its first call. A size that was another one before becomes a
symbol of the next program, and stays one.
"""

from __future__ import annotations

import weakref

import torch

from bothways.config import config

Number = int | float

# What the marks of ``mark_dynamic`` and ``mark_static`` are called on a tensor, and the latter's on a class of modules.
DYNAMIC_MARK, STATIC_MARK = "_bothways_dynamic", "_bothways_static"

# Above, numbers in kernels would overflow.
LARGEST = 2**62

# Programs for so many lengths of one list, or values of a number that can be no symbol, are worth it.
FEW = 3

# Sets of dimensions are replaced, not changed: a thread that compiles for what was forgotten meanwhile may be reading.
NONE: frozenset[int] = frozenset()


class SizeHistory:
    """``dynamic`` is the user's wish: True for all, False for none, None for what changes."""

    def __init__(self, dynamic: bool | None = None) -> None:
        self.dynamic = dynamic
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._moving_dims: dict[str, frozenset[int]] = {}
        self._strides: dict[str, tuple[int, ...]] = {}
        self._moving_strides: dict[str, frozenset[int]] = {}
        self._numbers: dict[str, Number] = {}
        self._moving_numbers: set[str] = set()
        self._small_numbers: set[str] = set()
        self._all_may_be_small = False
        self._texts: dict[str, str] = {}
        self._changing_texts: set[str] = set()
        self._objects: dict[str, weakref.ref[object]] = {}
        self._changing_objects: set[str] = set()
        self._lengths: dict[str, set[int]] = {}
        self._values: dict[str, set[Number]] = {}

    def dims(self, name: str, tensor: torch.Tensor, *, is_static: bool = False) -> frozenset[int]:
        """The dimensions of a tensor whose sizes are symbols now. Nothing and one are never: they broadcast.

        ``is_static`` is for a tensor of a module whose class is marked; ``mark_dynamic`` wins, here and of the tensor.
        """
        if self.dynamic is False:
            return NONE
        sizes = tuple(tensor.shape)
        before = self._sizes.get(name)
        self._sizes[name] = sizes
        moving = self._moving_dims.get(name, NONE)
        if before is not None and len(before) == len(sizes) and config.automatic_dynamic:
            moving |= {dim for dim, (one, other) in enumerate(zip(before, sizes, strict=True)) if one != other}
            self._moving_dims[name] = moving
        dims = frozenset(range(len(sizes))) if self._wants_all else moving
        dims = NONE if is_static else dims
        if tensor.__dict__:
            dims = (dims - getattr(tensor, STATIC_MARK, set())) | getattr(tensor, DYNAMIC_MARK, set())
        return frozenset(dim for dim in dims if dim < len(sizes) and sizes[dim] > 1)

    def steps(self, name: str, tensor: torch.Tensor, *, is_static: bool = False) -> frozenset[int]:
        """The dimensions of a tensor whose strides are symbols now, where these do not follow from its sizes: a window
        on tensors of several widths. Nothing and one are never: what is expanded, or dense, is laid out apart.
        """
        if self.dynamic is False or tensor.layout is not torch.strided:
            return NONE
        strides = tensor.stride()
        before = self._strides.get(name)
        self._strides[name] = strides
        moving = self._moving_strides.get(name, NONE)
        if before is not None and len(before) == len(strides) and config.automatic_dynamic:
            moving |= {dim for dim, (one, other) in enumerate(zip(before, strides, strict=True)) if one != other}
            self._moving_strides[name] = moving
        return NONE if is_static else frozenset(dim for dim in moving if dim < len(strides) and strides[dim] > 1)

    def moves(self, name: str, number: Number, *, is_argument: bool, is_schedule: bool = False) -> bool:
        """Whether a number is a symbol now; with ``dynamic=True`` those are that the call is given.

        ``is_schedule``: it is there to be changed, and need not have been.
        """
        if self.dynamic is False:
            return False
        before = self._numbers.setdefault(name, number)
        changed = is_schedule or name in self._sizes or (type(before) is type(number) and before != number)
        if changed and config.automatic_dynamic:  # it was a tensor, or another number
            self._moving_numbers.add(name)
        self._numbers[name] = number
        # Nothing and one mean more than others do, and equality tells neither zeros apart nor what is no number. A
        # counter goes through one, though, on its way from nothing, and the bound of a slice comes to nothing at times.
        if (number == 0 and type(number) is float) or number != number or not abs(number) < LARGEST:
            return False
        return name in self._moving_numbers or (is_argument and self._wants_all and number not in (0, 1))

    def is_small(self, name: str, number: Number) -> bool:
        """Whether a number is, or ever was, nothing, one or negative: then a program for larger ones is not enough.

        Where one of the function's numbers has become small that was not before, the others may as well.
        """
        if number <= 1:
            self._all_may_be_small |= name in self._moving_numbers and name not in self._small_numbers
            self._small_numbers.add(name)
        return self._all_may_be_small or name in self._small_numbers

    @property
    def _wants_all(self) -> bool:
        return self.dynamic is True or (self.dynamic is None and not config.assume_static)

    def changes(self, name: str, text: str) -> bool:
        """Whether a text is, or ever was, another one than before."""
        before = self._texts.setdefault(name, text)
        if before != text:
            self._changing_texts.add(name)
        return name in self._changing_texts

    def replaces(self, name: str, obj: object) -> bool:
        """Whether there is, or ever was, another object than before."""
        if self._objects.setdefault(name, weakref.ref(obj))() is not obj:
            self._changing_objects.add(name)
        return name in self._changing_objects

    def grows(self, name: str, length: int) -> bool:
        """Whether what goes through a list would make a program for each call."""
        lengths = self._lengths.setdefault(name, set())
        lengths.add(length)
        return len(lengths) > FEW

    def varies(self, name: str, number: Number) -> bool:
        """Whether a number that can be no symbol would make a program for each call."""
        values = self._values.setdefault(name, set())
        values.add(number)
        return len(values) > FEW

    def clear(self) -> None:
        self.__init__(self.dynamic)  # type: ignore[misc]  # other containers: a thread may be reading these
