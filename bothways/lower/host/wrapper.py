"""Writes the Python around the kernels of a graph: allocate memory, call routines and ATen, return the results."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bothways import ops, torch_compat
from bothways.lower.host.entries import entry
from bothways.lower.ir.prims import Buffer, Extern, Memory, contiguous
from bothways.lower.ir.sizes import Fraction, Size, size_hint
from bothways.lower.schedule.memory import Plan, Run, memories_of, size_of
from bothways.lower.schedule.overwriting import overwritten
from bothways.lower.schedule.steps import Lowered
from bothways.source_text import identifier, in_comment

CPU = torch.device("cpu")
# So many runs later at most is a tensor used again: who waits longer is in the way when ATen needs much memory.
SOON = 4


def as_laid_out(
    tensor: torch.Tensor | None, strides: tuple[int, ...], dtype: torch.dtype, surprises: list[str]
) -> torch.Tensor | None:
    """A result of ATen with the strides and the dtype that kernels rely on; copied when it has others, and noted. What
    is only for a backward, as what a recurrent layer leaves, may not be there where there will be none."""
    if tensor is None:
        return None
    if tensor.dtype is dtype and all(
        size < 2 or one == other for size, one, other in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return tensor
    surprises.append(f"{tensor.dtype} {tuple(tensor.stride())}")
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)


def blank(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU
) -> torch.Tensor:
    """A tensor without memory, to make others like it: that takes half as long as to say what they are."""
    with torch.inference_mode(False):
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        tensor.untyped_storage().resize_(0)
    return tensor


# A tensor that has to be made: its name, and its shape, strides and dtype.
New = tuple[str, tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
# The C function that runs kernels: its name, the memories and the sizes it takes.
Entry = tuple[str, list[Memory], tuple[str, ...]]


class PythonWriter:
    """The text of one program, and the objects it refers to by name."""

    def __init__(self, lowered: Lowered, runs: Sequence[Run], plan: Plan, entries: dict[int, Entry], makes: bool):
        self._lowered, self._runs, self._plan, self._entries = lowered, runs, plan, entries
        self.uses_threads = False
        self._makes = makes  # whether the dialect makes several tensors by one call
        self.namespace: dict[str, Any] = {
            "empty": torch.empty,
            "empty_like": torch.empty_like,
            "empty_strided": torch.empty_strided,
            "get_num_threads": torch.get_num_threads,
        }
        self._names: dict[int, str] = {}
        self._viewed = {  # memory that results of ATen may be views of: it lives longer than its name
            memory for run in runs if isinstance(run, Extern) and run.is_view for memory in memories_of(run)
        }
        self._overwritten: dict[Memory, Memory] = {}  # those that take the place of another in their kernel
        self._made = self._made_by_runs()
        self._shared = self._shared_views()
        self._blanks: dict[tuple[Any, ...], str] = {}
        self._makers: dict[tuple[str, ...], str] = {}  # the functions that make tensors: what, and by which name
        self.new: dict[str, list[str]] = {}  # the same by name
        for memory, tensor in lowered.constants.items():
            self.namespace[memory.name] = tensor

    def write(self, *, takes_list: bool, checks_layout: bool) -> str:
        """The function ``run``, of the inputs or of a list of them that it empties."""
        self._known_names = {*self.namespace, *self._lowered.symbols, *self._lowered_names()}
        inputs = [*self._lowered.symbols, *(memory.name for memory in self._lowered.inputs)]
        if takes_list:
            lines = ["def run(inputs):"]
            if inputs:
                lines.append(f"    [{', '.join(inputs)}] = inputs")
            lines.append("    inputs.clear()")
        else:
            lines = [f"def run({', '.join(inputs)}):"]
        begin = len(lines)
        if self.uses_threads:
            lines.append("    get_num_threads()  # a new Python thread has PyTorch's number of threads from now on")
        self._taken: dict[Memory, dict[str, str]] = {}  # the views that have a name: what they are, and which
        free: dict[tuple[Any, ...], list[Memory]] = {}  # tensors that are not needed any more, by what they are
        last = self._last_uses(takes_list)
        self._room = self._room_of_runs(last)
        for number, run in enumerate(self._runs):
            if isinstance(run, list):
                lines += self._run_kernels(number, free)
            else:
                lines += self._call(run, checks_layout)
            dead = [memory for memory, when in last.items() if when == number]
            lines += self._let_go(dead, number, free)
        outputs = "".join(f"{'None' if buffer is None else self.tensor(buffer)}, " for buffer in self._lowered.outputs)
        if checks_layout:
            lines.append("    settle()")
        lines.append(f"    return ({outputs})")
        if self._lowered.sizes is not None:
            lines[begin:begin] = [f"    {line}" for line in self._lowered.sizes.definitions()]
        return "\n".join(lines) + "\n"

    def _lowered_names(self) -> Iterator[str]:
        yield from (memory.name for run in self._runs for memory in memories_of(run))
        yield from (memory.name for memory in self._lowered.inputs)

    def _last_uses(self, takes_list: bool) -> dict[Memory, int]:
        last = dict(self._plan.last)
        if takes_list:
            returned = {buffer.memory for buffer in self._lowered.outputs if buffer is not None}
            for number, run in enumerate(self._runs):
                for memory in memories_of(run):
                    if memory in self._lowered.inputs and memory not in returned:
                        last[memory] = number
        return last

    def _room_of_runs(self, last: dict[Memory, int]) -> list[int]:
        """By how many bytes each run holds less than the one that holds most."""
        change = [0] * (len(self._runs) + 1)
        freed = {memory: 0 for memory in self._lowered.inputs if memory in last and memory not in self._lowered.held}
        for memory, first in (freed | self._first).items():
            count = size_hint(size_of(memory))
            change[first + (memory in self._overwritten)] += count
            change[last.get(memory, len(self._runs) - 1) + 1] -= count
        held = list(itertools.accumulate(change[:-1]))
        for number, area in self._plan.areas.items():
            held[number] += size_hint(area.size)
        return [max(held) - one for one in held]

    def _let_go(self, dead: list[Memory], number: int, free: dict[tuple[Any, ...], list[Memory]]) -> list[str]:
        """Forget tensors; those of a kernel are first offered to the next one that needs the like."""
        forgotten: list[str] = []
        for memory in dead:
            forgotten += self._taken.pop(memory, {}).values()
            own = self._is_own(memory) and not isinstance(memory.producer, Extern)
            own = own and memory not in self._overwritten.values()
            if own and self._may_wait(memory, number, len(free.get(_kind(memory), ()))):
                free.setdefault(_kind(memory), []).append(memory)
            else:
                forgotten.append(memory.name)
        return [f"    del {', '.join(forgotten)}"] if forgotten else []

    def _may_wait(self, memory: Memory, number: int, spare: int) -> bool:
        """Whether a tensor is better used again after a run than freed, where ``spare`` ones of its kind are there:
        soon, and with no more memory held at the peak. Who may wait takes the room."""
        wanted = [later for later in self._wanted.get(_kind(memory), ()) if later > number]
        if len(wanted) <= spare or wanted[spare] > number + SOON:
            return False
        between, count = range(number + 1, wanted[spare]), size_hint(size_of(memory))
        if any(self._room[run] < count for run in between):
            return False
        for run in between:
            self._room[run] -= count
        return True

    def _shared_views(self) -> set[str]:
        """The views that several calls of ATen take: one will do for them all."""
        sources = [source for run in self._runs if isinstance(run, Extern) for source in run.sources()]
        texts = Counter(self.tensor(source) for source in sources if isinstance(source, Buffer))
        return {text for text, count in texts.items() if count > 1 and "." in text}

    def _made_by_runs(self) -> dict[int, list[Memory]]:
        """The tensors that have to be made before each run of kernels."""
        known = {*self._lowered.inputs, *self._lowered.constants}
        by_run: dict[int, list[Memory]] = {}
        self._first: dict[Memory, int] = {}  # the runs that make what has no place in a work area
        self._wanted: dict[tuple[Any, ...], list[int]] = {}  # the runs that want new tensors of a kind, in order
        for number, run in enumerate(self._runs):
            if number in self._entries:
                by_run[number] = [memory for memory in self._entries[number][1] if memory not in known]
                self._overwritten |= self._overwritten_in(number, by_run[number])
                for memory in by_run[number]:
                    if memory not in self._overwritten:
                        self._wanted.setdefault(_kind(memory), []).append(number)
                self._first |= dict.fromkeys(by_run[number], number)
            elif isinstance(run, Extern) and not run.is_view:
                self._first |= {memory: number for memory in run.results if memory is not None}
                self._overwritten |= self._changed_by(number, run)
            known.update(memories_of(run))
        return by_run

    def _overwritten_in(self, number: int, new: list[Memory]) -> dict[Memory, Memory]:
        """New tensors of a run that take the place of others, which are used there for the last time."""
        run = self._runs[number]
        if self._lowered.device != CPU or not isinstance(run, list):
            return {}
        dead = [memory for memory, last in self._plan.last.items() if last == number and self._is_own(memory)]
        pairs = overwritten(run, dead, new)
        returned = {buffer.memory for buffer in self._lowered.outputs if buffer is not None}
        # What ATen made may be a part of something larger, which a result must not keep alive.
        return {
            memory: old
            for memory, old in pairs.items()
            if memory not in returned or not isinstance(old.producer, Extern)
        }

    def _changed_by(self, number: int, call: Extern) -> dict[Memory, Memory]:
        """What a collective gives, which takes the place of what it is called with where that is used last."""
        is_ours = torch_compat.is_plain_overload(call.target) and call.target.namespace == "bothways"
        operand, result = (call.args or (None,))[0], call.results[0] if call.results else None
        if result is None or not (is_ours and ops.of(call.target).copies_first and isinstance(operand, Buffer)):
            return {}
        memory = operand.memory
        is_last = self._plan.last.get(memory) == number and self._is_own(memory)
        is_whole = _kind(memory) == _kind(result) and self.tensor(operand) == memory.name
        is_whole = is_whole and memory not in self._overwritten.values()
        return {result: memory} if is_last and is_whole and not isinstance(memory.producer, Extern) else {}

    def _is_own(self, memory: Memory) -> bool:
        """Whether a tensor is seen by the program alone."""
        producer = memory.producer
        is_fresh = producer.is_fresh if isinstance(producer, Extern) else producer is not None
        return is_fresh and memory not in self._viewed

    def _run_kernels(self, number: int, free: dict[tuple[Any, ...], list[Memory]]) -> list[str]:
        name, memories, sizes = self._entries[number]
        lines: list[str] = []
        new: list[New] = []
        for memory in self._made[number]:
            spare = free.get(_kind(memory))
            if memory in self._overwritten:
                lines.append(f"    {memory.name} = {self._overwritten[memory].name}")
            elif spare:
                old = spare.pop().name
                lines.append(f"    {memory.name} = {old}; del {old}")
            else:
                new.append((memory.name, _kind(memory)))
        arguments = [memory.name for memory in memories]
        area = self._plan.areas[number]
        if area.size:
            new.append(("area", ((area.size,), (1,), torch.uint8)))
            arguments.append("area")
        if self._makes:
            lines += self._made_at_once(new)
        else:
            lines += [f"    {label} = {self._allocation(*kind)}" for label, kind in new]
        lines.append(f"    {name}({', '.join([*arguments, *sizes])})")
        if area.size:
            lines.append("    del area")
        return lines

    def _made_at_once(self, new: list[New]) -> list[str]:
        """The line that makes some tensors on the CPU."""
        if not new:
            return []
        passed: dict[str, int] = {}
        rows = []
        for _, (shape, strides, dtype) in new:
            words = [str(dtype).removeprefix("torch."), *(_word(size, passed) for size in shape)]
            if strides != contiguous(shape):
                words += ["/", *(_word(stride, passed) for stride in strides)]
            rows.append(" ".join(words))
        key = tuple(rows)
        if key not in self._makers:
            self._makers[key] = f"new_{len(self._makers)}"
            self.new[self._makers[key]] = rows
        labels = ", ".join(label for label, _ in new)
        what = "; ".join(_described(*kind) for _, kind in new)
        return [f"    {labels} = {self._makers[key]}({', '.join(passed)})  # {what}"]

    def _allocation(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> str:
        like = self._like(shape, strides, dtype)
        if like:
            return f"empty_like({like})"
        kind = self._kind_of_tensor(dtype)
        if strides == contiguous(shape):
            # Sizes one by one: PyTorch takes a third longer to read a tuple.
            return f"empty({', '.join(map(str, shape)) or '()'}, {kind})"
        return f"empty_strided({shape}, {strides}, {kind})"

    def _like(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> str:
        """The name of a tensor that others are made like; nothing where sizes change, or elements share memory."""
        if not all(type(number) is int for number in (*shape, *strides)):
            return ""
        key = shape, strides, dtype
        if key not in self._blanks:
            example = blank(*key, self._lowered.device)
            is_dense = torch.empty_like(example).stride() == strides
            self._blanks[key] = self.constant(example, f"like_{len(self._blanks)}") if is_dense else ""
        return self._blanks[key]

    def _kind_of_tensor(self, dtype: torch.dtype) -> str:
        """Arguments that make memory where kernels write, whatever the caller's default device is."""
        return f"dtype={self.constant(dtype)}, device={self.constant(self._lowered.device)}"

    def _call(self, extern: Extern, checks_layout: bool) -> list[str]:
        views = self._name_views(extern)
        args = [self._argument(arg) for arg in extern.args]
        args += [f"{name}={self._argument(arg)}" for name, arg in extern.kwargs.items()]
        is_in_place = extern.results and extern.results[0] in self._overwritten
        target = torch_compat.form_in_place(extern.target) if is_in_place else extern.target
        function = entry(target, extern.args, extern.kwargs, _is_tensor)
        call = f"{self.constant(function, str(target))}({', '.join(args)}){_line_of(extern)}"
        if not extern.results:
            return [*views, f"    {call}"]
        names = [memory.name if memory is not None else "_" for memory in extern.results]
        lines = [*views, f"    {', '.join(names)}{',' if extern.is_tuple else ''} = {call}"]
        if checks_layout:
            for memory in filter(None, extern.results):
                expected = f"{memory.strides}, {self.constant(memory.dtype)}"
                lines.append(f"    {memory.name} = as_laid_out({memory.name}, {expected}, surprises)")
        return lines

    def _name_views(self, extern: Extern) -> list[str]:
        """Give those views a name that later calls take as well."""
        lines = []
        for source in extern.sources():
            if not isinstance(source, Buffer) or (text := self.tensor(source)) not in self._shared:
                continue
            taken = self._taken.setdefault(source.memory, {})
            if text not in taken:
                taken[text] = self._unused(f"{source.memory.name}_view")
                lines.append(f"    {taken[text]} = {text}")
        return lines

    def _unused(self, name: str) -> str:
        count = itertools.count(1)
        unused = name
        while unused in self._known_names:
            unused = f"{name}_{next(count)}"
        self._known_names.add(unused)
        return unused

    def _argument(self, value: Any) -> str:
        if isinstance(value, Buffer):
            text = self.tensor(value)
            return self._taken.get(value.memory, {}).get(text, text)
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._argument(item) for item in value)
            return f"[{inside}]"
        if value is None or isinstance(value, (bool, int, str, Size, Fraction)):
            return repr(value)
        return self.constant(value)

    def tensor(self, buffer: Buffer) -> str:
        """A buffer as a tensor."""
        memory = buffer.memory
        if (buffer.shape, buffer.strides, buffer.offset) == (memory.shape, memory.strides, 0):
            return memory.name
        turned = (memory.shape[::-1], memory.strides[::-1], 0)
        if len(memory.shape) == 2 and (buffer.shape, buffer.strides, buffer.offset) == turned:
            return f"{memory.name}.mT"
        if memory.producer is None or isinstance(memory.producer, Extern):
            offset = f"{memory.name}.storage_offset() + {buffer.offset}"
        else:
            offset = str(buffer.offset)
        return f"{memory.name}.as_strided({buffer.shape}, {buffer.strides}, {offset})"

    def constant(self, value: Any, hint: str = "") -> str:
        """A name for an object that has no literal."""
        name = self._names.get(id(value))
        if name is None:
            hint = getattr(value, "__name__", None) or hint or str(value)
            name = f"at_{identifier(str(hint).removeprefix('torch.'))[:40]}"
            while name in self.namespace:
                name += "_"
            self._names[id(value)] = name
            self.namespace[name] = value
        return name


def _line_of(extern: Extern) -> str:
    """A comment with the user's line that a call comes from; nothing where that is not known."""
    _, _, where = extern.origin.partition(": ")
    return f"  # {in_comment(where.partition('  ')[0])}" if where else ""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Buffer)


def _word(number: Any, passed: dict[str, int]) -> str:
    """A size as it stands in the row of a tensor that is made: itself, or its place among the numbers ``passed``."""
    return str(number) if type(number) is int else f"_{passed.setdefault(str(number), len(passed))}"


def _described(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> str:
    """What a tensor is, for people."""
    sizes = ", ".join(map(str, shape))
    sizes = sizes if len(shape) == 1 and sizes.startswith("(") else f"({sizes})"
    laid_out = "" if strides == contiguous(shape) else f" by ({', '.join(map(str, strides))})"
    return f"{str(dtype).removeprefix('torch.')} {sizes}{laid_out}"


def _kind(memory: Memory) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return memory.shape, memory.strides, memory.dtype
