"""A dialect that looks on: each kernel runs by itself, and then what it wrote is compared with what plain Python loops
over the same memory write.

The kernels are those of the dialect it stands in front of, one routine each. Loops in Python take a millisecond for
some hundred elements, so kernels over large memories are only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bothways.cache.disk import Cache
from bothways.lower.dialects.reference.dialect import Reference
from bothways.lower.host.dialect import Dialect, Functions, Spelled
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import SizeNames
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Kernel
from bothways.testing.compare import difference

MOST_ELEMENTS = 1 << 18  # of the memories of a kernel that is run in Python as well


@dataclass(frozen=True)
class Uncached:
    """A dialect whose programs are compiled each time; libraries of the same text are still found."""

    dialect: Dialect

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dialect, name)

    def tools(self, cache: Cache) -> str | None:
        return None


@dataclass
class Testimony:
    """What was seen: kernels that gave something else than their loops say, and how many were compared."""

    wrong: list[tuple[Kernel, str, str]] = field(default_factory=list)  # with the text it has, and the difference
    compared: int = 0


@dataclass(frozen=True)
class Witness:
    """Stands in front of a dialect."""

    dialect: Dialect
    testimony: Testimony
    tolerance: Callable[[torch.dtype], float]

    @property
    def name(self) -> str:
        return self.dialect.name

    @property
    def suffix(self) -> str:
        return self.dialect.suffix

    @property
    def device(self) -> str:
        return self.dialect.device

    def tools(self, cache: Cache) -> str | None:
        return None

    def arranged(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        return self.dialect.arranged(kernels)

    def spell(self, routines: Sequence[Routine], names: SizeNames | None) -> Spelled:
        single = {
            routine.name: [
                replace(routine, name=f"{routine.name}_{number}", kernels=(kernel,))
                for number, kernel in enumerate(routine.kernels)
            ]
            for routine in routines
        }
        every = [one for parts in single.values() for one in parts]
        return _Watched(self, single, self.dialect.spell(every, names), Reference().spell(every, names))

    def recall(self, key: str, kinds: Mapping[str, str], cache: Cache) -> Functions | None:
        return None

    def whole(self, text: str) -> str:
        return self.dialect.whole(text)


@dataclass(frozen=True)
class _Watched:
    """The kernels of a program in both languages."""

    witness: Witness
    single: dict[str, list[Routine]]
    real: Spelled
    reference: Spelled

    @property
    def text(self) -> str:
        return self.real.text

    @property
    def sizes(self) -> dict[str, tuple[str, ...]]:
        taken = {name: [size for one in parts for size in self._sizes(one)] for name, parts in self.single.items()}
        return {name: tuple(dict.fromkeys(sizes)) for name, sizes in taken.items()}

    def _sizes(self, routine: Routine) -> list[str]:
        return [*self.real.sizes[routine.name], *self.reference.sizes[routine.name]]

    @property
    def uses_threads(self) -> bool:
        return self.real.uses_threads

    def key(self, cache: Cache) -> str:
        return ""

    def functions(self, kinds: Mapping[str, str]) -> Functions:
        letters = {
            one.name: self._letters(one, kinds[name], self.real.sizes[one.name])
            for name, parts in self.single.items()
            for one in parts
        }
        real, plain = self.real.functions(letters), self.reference.functions(letters)
        return {name: self._function(name, real, plain) for name in kinds}

    def _letters(self, one: Routine, kinds: str, sizes: Sequence[str]) -> str:
        """The letters of one kernel's arguments, of those of its routine."""
        pointers = len(one.memories) + bool(one.area.size)
        routine = one.name.rpartition("_")[0]
        of_sizes = dict(zip(self.sizes[routine], kinds[pointers:], strict=True))
        return kinds[:pointers] + "".join(of_sizes[name] for name in sizes)

    def _function(self, name: str, real: Functions, plain: Functions) -> Callable[..., None]:
        parts, sizes = self.single[name], self.sizes[name]

        def run(*arguments: Any) -> None:
            count = len(arguments) - len(sizes)
            tensors, numbers = arguments[:count], dict(zip(sizes, arguments[count:], strict=True))
            for one in parts:
                self._run(one, tensors, numbers, real[one.name], plain[one.name])

        return run

    def _run(
        self,
        one: Routine,
        tensors: Sequence[torch.Tensor],
        numbers: Mapping[str, Any],
        real: Callable[..., Any],
        plain: Callable[..., Any],
    ) -> None:
        [kernel] = one.kernels
        testimony = self.witness.testimony
        is_small = sum(tensor.untyped_storage().nbytes() for tensor in tensors) <= 4 * MOST_ELEMENTS
        copies = _copies(tensors) if is_small else []
        real(*tensors, *(numbers[name] for name in self.real.sizes[one.name]))
        if not is_small:
            return
        plain(*copies, *(numbers[name] for name in self.reference.sizes[one.name]))
        testimony.compared += 1
        for memory in kernel.memories:
            if memory in kernel.written:
                here, there = (_part(memory, one, values, numbers) for values in (tensors, copies))
                differs = difference(there, here.to(there.device), tol=self.witness.tolerance(memory.dtype))
                if differs is not None:
                    said = differs.replace("result", memory.name, 1)
                    testimony.wrong.append((kernel, _text_of(self.real, kernel), said))


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors laid out alike in memory of their own; what shared memory still does."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone() if tensor.device.type == "cpu" else storage.cpu()
        copy = torch.empty(0, dtype=tensor.dtype)
        layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        copies.append(copy.set_(storages[storage.data_ptr()], *layout))
    return copies


def _part(memory: Memory, one: Routine, tensors: Sequence[torch.Tensor], numbers: Mapping[str, Any]) -> torch.Tensor:
    """A memory of a kernel: a tensor of its own, or a part of the work area."""
    shape, strides = ([_number(size, numbers) for size in sizes] for sizes in (memory.shape, memory.strides))
    if memory in one.area.offsets:
        tensor, offset = tensors[len(one.memories)], _number(one.area.offsets[memory], numbers)
    else:
        tensor, offset = tensors[one.memories.index(memory)], 0
    begin = tensor.storage_offset() * tensor.element_size() + offset
    view = torch.empty(0, dtype=memory.dtype, device=tensor.device)
    storage = tensor.untyped_storage()
    return view.set_(storage, begin // memory.dtype.itemsize, shape, strides).clone()


def _number(size: Any, numbers: Mapping[str, Any]) -> int:
    """A size that is known now: sizes are written as Python writes them."""
    return size if isinstance(size, int) else int(eval(str(size), {}, dict(numbers)))


def _text_of(spelled: Spelled, kernel: Kernel) -> str:
    """The function of a kernel among the texts of all: those that do the same are one."""
    parts = [part for part in spelled.text.split("\n\n") if f"_{kernel.hint}(" in part and "given" not in part]
    return parts[0] if len(parts) == 1 else str(kernel)
