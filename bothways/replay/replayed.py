"""A compiled graph that is replayed from its third call of a kind on: what is recorded, when, and for which calls.

A call of a kind has the same numbers, stream and settings. Inputs that lay at the same address in the calls before are
read and written there, others are copied. Whatever does not fit runs as it always did.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.config import config
from bothways.record import generated
from bothways.record.compilation import Compilation
from bothways.record.replays import Replays
from bothways.replay.kinds import Kind
from bothways.replay.outputs import LeftOut, NotPlanned, is_apart
from bothways.replay.recorders import GraphRecorder, Lane, recorder_of
from bothways.replay.recording import Recording
from bothways.replay.whether import launches_of, pays_off, why_never, why_not_graph, written_inputs
from bothways.runtime.compiled_graph import described, known_of
from bothways.runtime.logs import say
from bothways.runtime.picking import Joined
from bothways.runtime.spares import Spares

CALLS_BEFORE = 2  # the first is a real one, the second shows that it repeats
MOST_RECORDINGS = 8  # of one compiled graph; then the one goes that was not used for the longest time
MOST_KINDS = 64  # of calls that are remembered
MOST_MADE = 16  # recordings of one kind of call, those that are gone included
SMALL = 1 << 24  # bytes of an input that is copied as soon as it has moved
OFTEN = 3  # so often has a large one moved that is copied
MOST_IN_VAIN = 8  # calls at once, one after the other, that had to be made otherwise
MOST_LENDING = 2  # recordings that lend results to the caller: each has memory of its own

_lent: dict[int, int] = {}  # addresses of what recordings lend, and how many do
_all: weakref.WeakSet[Replayed] = weakref.WeakSet()
_clock = itertools.count(1)


class Replayed:
    """The recordings of one compiled graph."""

    def __init__(
        self,
        run: Callable[..., Any],
        name: str,
        device: torch.device,
        recorder: GraphRecorder,
        place: Compilation | None,
    ) -> None:
        self._run, self._device, self._recorder = run, device, recorder
        self._takes_list = known_of(run).takes_list
        self.function = "a function" if place is None else place.function
        self._mode = None if place is None else place.cuda_graphs
        self._hidden: int | None = None
        self.written: Set[int] | None = None  # the inputs that it writes to, where that is known
        self._numbers: list[int] | None = None  # places of inputs, unknown until the first call
        self._tensors: list[int] = []
        self._floats: list[int] = []
        self._kinds: dict[Any, Kind] = {}
        self._gave: list[weakref.ref[torch.Tensor] | None] = []  # results of the last call that was not replayed
        self._is_watched = False
        self._lends_results = True
        self._left_out: LeftOut | None = None
        self._changes: Mapping[int, int] = {}
        self._latest: tuple[Any, Recording] | None = None  # what may be called at once, with the key of its kind
        self._in_vain = 0
        self.spares = Spares()
        self._never = ""
        self.replays = Replays(name)
        if place is not None:
            place.replays.append(self.replays)
        _all.add(self)

    @property
    def owner(self) -> str:
        return f"{self.function}, {self.replays.name}"

    @property
    def recordings(self) -> list[Recording]:
        return [recording for kind in list(self._kinds.values()) for recording in kind.recordings]

    def lend_from(self, number: int) -> None:
        """Results from this one on are seen by the graph's backward alone."""
        self._hidden = number

    def leave_out(self, count: int, places: Sequence[int]) -> None:
        """Results from this one on need not be given where they are the inputs at these places."""
        self._left_out = LeftOut(count, tuple(places))

    def count(self, changes: Mapping[int, int]) -> None:
        """How often inputs count as changed by a call at once, by their places among the tensors."""
        self._changes = changes

    def at_once(self, numbers: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The results of the recording that has served the last call, with all changes counted, where C finds that it
        serves this one as well. None, and nothing was done, where it does not."""
        latest = self._latest
        if latest is None or self._may_not():
            return None
        key, recording = latest
        lane = self._recorder.lane(self._device)
        values = Joined(numbers, tensors)
        if self._key(lane, numbers) != key:
            return None
        try:
            with lane.lock:
                if lane.busy or not (recording.computes_with(numbers) or self._set(recording, values, lane)):
                    return None
                results = self._replay(recording, values, lane, self.spares.owners or None, counts=True)
        except BaseException:
            self.spares.clear()
            raise
        self._in_vain = self._in_vain + 1 if results is None else 0
        if results is None:
            self._latest = None
        return results

    def call(self, values: Sequence[Any], seen: int = 0) -> tuple[Any, ...] | None:
        """The results of a replay; None for a call that has to run as it always did. ``seen`` is a number that stands
        for where its tensors lie, or 0."""
        try:
            results = self._called(values, seen)
        except BaseException:
            self.spares.clear()
            raise
        if results is None:
            self.spares.clear()
        return results

    def _may_not(self) -> bool:
        """Whether nothing is replayed now, whatever fits."""
        if self._never or (config.cuda_graphs is False and not self._mode):
            return True
        return bool(self._recorder.why_not_now())

    def _key(self, lane: Lane, values: Sequence[Any]) -> tuple[Any, ...]:
        """What calls of a kind share. Whole numbers come before all tensors where these come together."""
        return lane.key, torch_compat.launch_settings(), *[values[place] for place in self._numbers or ()]

    def _called(self, values: Sequence[Any], seen: int) -> tuple[Any, ...] | None:
        if self._may_not():
            return None
        if self._numbers is None:
            self._note(values)
        lane = self._recorder.lane(self._device)
        key = self._key(lane, values)
        with lane.lock:
            if lane.busy:  # what is called from inside of a replay must not write to the same memory
                return None
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._new_kind(key)
            results = self._served(kind, values, lane, seen)
            if results is not None and kind.latest is not None and self._in_vain < MOST_IN_VAIN:
                self._latest = (key, kind.latest) if kind.latest.counts else None
            return results

    def _served(self, kind: Kind, values: Sequence[Any], lane: Lane, seen: int) -> tuple[Any, ...] | None:
        """The results of a recording of a kind, which may be a new one."""
        results = self._served_again(kind, values, lane, seen)
        if results is not None:
            return results
        if self.spares.owners:
            self.spares.clear()  # what runs then may move inputs
            seen = 0
        has_other_numbers = False
        for recording in kind.recordings:
            if recording.fits(values, seen):
                if not self._floats or self._set(recording, values, lane):
                    results = self._replay(recording, values, lane, is_sure=True)
                    if results is None:
                        return None
                    kind.latest = recording
                    return results
                has_other_numbers = True
        fitting = self._recorded(kind, values, lane, has_other_numbers)
        return None if fitting is None else self._replay(fitting, values, lane, is_sure=True)

    def _served_again(self, kind: Kind, values: Sequence[Any], lane: Lane, seen: int) -> tuple[Any, ...] | None:
        """The results of the recording that has served the last call, or has lent what the caller has left now."""
        owners = self.spares.owners
        if not owners:
            latest = kind.latest
            if latest is None or not latest.is_started_by_c or not latest.computes_with(values):
                return None
            # Of several, what one copies is not copied for nothing.
            is_likely = len(kind.recordings) == 1 or latest.lies_there(values, seen)
            return self._replay(latest, values, lane) if is_likely else None
        for recording in kind.recordings:
            if not recording.lends_results or not recording.outputs.given_again.may_be_left(owners):
                continue
            if recording.lies_there(values, seen) and (not self._floats or self._set(recording, values, lane)):
                results = self._replay(recording, values, lane, owners)
                if results is not None:
                    kind.latest = recording
                    return results
        return None

    def _note(self, values: Sequence[Any]) -> None:
        """Note which inputs are numbers: calls of a kind share those that are whole."""
        self._tensors = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        self._floats = [place for place, value in enumerate(values) if type(value) is float]
        apart = {*self._tensors, *self._floats}
        self._numbers = [place for place in range(len(values)) if place not in apart]

    def _set(self, recording: Recording, values: Sequence[Any], lane: Lane) -> bool:
        """Whether a recording computes with the numbers of a call, after they were set where that can be."""
        lane.busy = True
        try:
            return recording.takes(values, self._is_wanted)
        finally:
            lane.busy = False
            if recording.why_fixed:
                self._say(recording.why_fixed)

    def timed(self, values: Any) -> Any:
        """A call as it always was, timed where that is news."""
        self.replays.plain += 1
        begin = time.perf_counter()
        results = self._run(values) if self._takes_list else self._run(*values)
        if not self.replays.launching and self.replays.plain >= CALLS_BEFORE:
            self.replays.launching = time.perf_counter() - begin
        if self._is_watched:  # the next call may be recorded
            self._gave = self._gradients_among(results, () if self._takes_list else values)
            self._is_watched = False
        return results

    def _gradients_among(
        self, results: Sequence[Any], values: Sequence[Any]
    ) -> list[weakref.ref[torch.Tensor] | None]:
        """The results that the caller may get in memory that is used again: gradients alone, which are a backward's
        results, and those of a step that are like what it updates. Other results may be on their way to a stream that
        was told of them (``record_stream``), and holds no reference."""
        inputs = set(map(id, values))
        updated = {_form(result) for result in results if id(result) in inputs and isinstance(result, torch.Tensor)}
        return [
            weakref.ref(result)
            if isinstance(result, torch.Tensor)
            and result.dim() > 0
            and (self.replays.name == "backward" or _form(result) in updated)
            else None
            for result in results
        ]

    @property
    def _hidden_from(self) -> int:
        return len(self._gave) if self._hidden is None else self._hidden

    def _lendable(self) -> Set[int]:
        """The numbers of results that may stay in a recording's memory: those that only the backward sees, and those
        that the caller has let go by now."""
        lendable = set(range(self._hidden_from, len(self._gave)))
        if self._lends_results and sum(recording.lends_results for recording in self.recordings) < MOST_LENDING:
            lendable.update(number for number, gave in enumerate(self._gave) if gave is not None and gave() is None)
        return lendable

    def _replay(
        self,
        recording: Recording,
        values: Sequence[Any],
        lane: Lane,
        owners: Sequence[Any] | None = None,
        counts: bool = False,
        is_sure: bool = False,
    ) -> tuple[Any, ...] | None:
        """The results of a recording, whose lent tensors ``owners`` may have; None if it does not serve this call."""
        recording.used = next(_clock)
        lane.busy = True
        begin = time.perf_counter()
        try:
            results = recording.replay(values, owners, counts, is_sure)
        finally:
            lane.busy = False
        if results is None:
            return None
        self.spares.settle()
        self.spares.are_wanted = recording.lends_results
        self.replays.calls += 1
        self.replays.replaying = time.perf_counter() - begin
        return results

    def _new_kind(self, key: Any) -> Kind:
        if len(self._kinds) >= MOST_KINDS:
            unused = next((known for known, kind in self._kinds.items() if not kind.recordings), None)
            self._forget(self._kinds.pop(next(iter(self._kinds)) if unused is None else unused).recordings)
        return self._kinds.setdefault(key, Kind())

    def _recorded(
        self, kind: Kind, values: Sequence[Any], lane: Lane, has_other_numbers: bool
    ) -> Recording | None:
        """A new recording that fits this call; None where it is not time for one."""
        if kind.plain:
            return None
        self._drop(kind, [recording for recording in kind.recordings if recording.outputs.are_gone()])
        addresses = [0] * len(values)
        for place in self._tensors:
            addresses[place] = values[place].data_ptr()
        kind.observe(addresses, tuple([values[place] for place in self._floats]))
        self._is_watched = True
        if kind.calls <= CALLS_BEFORE:
            return None
        if has_other_numbers and kind.repeated <= CALLS_BEFORE:
            return None  # numbers that cannot be set have to come again as well
        copied = self._to_copy(kind, values)
        if copied is None:
            return None
        if kind.made >= MOST_MADE:
            self._leave(kind, "its tensors are at other addresses again and again")
            return None
        if kind.recordings and not kind.recordings[0].outputs.are_free() and kind.made > 1:
            if not any(recording.lends_results for recording in kind.recordings):
                return None  # two sets of what is saved for backwards are enough
            self._lend_no_more(kind)
        why = "" if self._recorder.runs_python else why_never(self._run)
        why = why or ("" if self._is_wanted else pays_off(launches_of(self._run), values, copied))
        if why:
            self.leave_alone(why)
            return None
        return self._record(kind, values, copied, lane)

    def _lend_no_more(self, kind: Kind) -> None:
        """Results are held for longer than until the next call, after all: from now on the caller gets copies."""
        self._lends_results = False
        self._drop(kind, kind.recordings)

    @property
    def _is_wanted(self) -> bool:
        return config.cuda_graphs is True if self._mode is None else self._mode

    def _to_copy(self, kind: Kind, values: Sequence[Any]) -> list[int] | None:
        """The inputs that have to be copied; None if it is better to wait until addresses settle."""
        copied = []
        patience = 1 if kind.made == 0 else 2
        for place, moves in enumerate(kind.moves):
            if not moves or kind.last[place] in _lent or not values[place].numel():
                continue
            is_small = values[place].nbytes <= SMALL and moves >= patience
            if (is_small or moves >= OFTEN) and is_apart(values[place]):
                copied.append(place)
            elif place in kind.moving:
                return None
        return copied

    def _record(self, kind: Kind, values: Sequence[Any], copied: list[int], lane: Lane) -> Recording | None:
        kind.made += 1
        self._drop_left()
        lane.busy = True
        try:
            lendable = self._lendable()
            new = Recording(
                self._run, values, copied, self._recorder, lane, self._takes_list, lendable, self.written,
                self._left_out, self._changes,
            )  # fmt: skip
            new.lends_results = any(number < self._hidden_from for number in lendable)
        except NotPlanned as error:
            self._leave(kind, str(error))
            return None
        except Exception as error:  # a call that cannot be recorded can still be made
            said = (str(error).splitlines() or [""])[0]
            self._leave(kind, f"recording it raised {type(error).__name__}: {said}")
            return None
        finally:
            lane.busy = False
        if not self._is_wanted and (why := pays_off(launches_of(self._run), values, copied, new.copied_bytes)):
            self._leave(kind, why)
            return None
        kind.recordings.insert(0, new)
        for place in set(new.outputs.written()).difference(copied):
            kind.moves[place] = 0  # what is updated moves when a checkpoint is loaded, and stays there
        for address in new.outputs.lent_addresses:
            _lent[address] = _lent.get(address, 0) + 1
        self._drop_least_used()
        self._count()
        say("graphs_on_gpu", f"{self.owner}: recorded, {new.recorded.nodes} nodes, {new.bytes / 1e6:.1f} MB")
        return new

    def leave_alone(self, why: str) -> None:
        """Record nothing of it."""
        self._never, self._is_watched = why, False
        self._say(why)

    def _leave(self, kind: Kind, why: str) -> None:
        """Record no more of a kind of calls."""
        kind.plain, self._is_watched = why, False
        self._say(why)

    def _say(self, why: str) -> None:
        if why not in self.replays.reasons:
            self.replays.reasons.append(why)
            say("graphs_on_gpu", f"{self.owner}: not replayed, {why}")

    def _drop_left(self) -> None:
        """Let go of recordings that no call will fit any more, before another one takes memory."""
        for kind in self._kinds.values():
            self._drop(kind, [recording for recording in kind.recordings if recording.is_left()])

    def _drop(self, kind: Kind, left: Sequence[Recording]) -> None:
        kind.recordings = [recording for recording in kind.recordings if recording not in left]
        self._forget(left)

    def _drop_least_used(self) -> None:
        by_use = [(recording.used, kind, recording) for kind in self._kinds.values() for recording in kind.recordings]
        by_use.sort(key=lambda item: item[0] or 1 << 62)  # one that was just made is used next
        for _, kind, recording in by_use[: max(len(by_use) - MOST_RECORDINGS, 0)]:
            self._drop(kind, [recording])

    def _forget(self, recordings: Sequence[Recording]) -> None:
        """They are not used any more, and are not kept."""
        self._latest = None
        for kind in self._kinds.values():
            kind.latest = None if kind.latest in recordings else kind.latest
        for recording in recordings:
            forget_lent(recording.outputs.lent_addresses)

    def _count(self) -> None:
        recordings = self.recordings
        self.replays.recordings = len(recordings)
        self.replays.nodes = sum(recording.recorded.nodes for recording in recordings)
        self.replays.bytes = sum(recording.bytes for recording in recordings)

    def __del__(self) -> None:
        self._forget(self.recordings)


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def forget_lent(addresses: Sequence[int]) -> None:
    for address in addresses:
        _lent[address] = _lent.get(address, 1) - 1
        if _lent[address] <= 0:
            del _lent[address]


def one_device(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """The device that all tensors are on, and that there is a recorder for; None if there is no such one."""
    devices = {tensor.device for tensor in tensors}
    if torch.device("cuda") in devices and torch.cuda.device_count() == 1:
        devices = (devices - {torch.device("cuda")}) | {torch.device("cuda", 0)}
    device = devices.pop() if len(devices) == 1 else None
    if device is None or recorder_of(device) is None:
        return None
    return None if device.type == "cuda" and device.index is None else device


def replayed(
    run: Callable[..., Any], name: str, device: torch.device | None, graph: torch.fx.GraphModule | None = None
) -> Callable[..., Any]:
    """A compiled graph whose tensors are all on one device, as a function that is replayed where that can be."""
    place = generated.current()
    mode = None if place is None else place.cuda_graphs
    wanted = config.cuda_graphs if mode is None else mode
    recorder = None if device is None or wanted is False else recorder_of(device)
    if recorder is None or device is None:
        return run
    state = Replayed(run, name, device, recorder, place)
    if graph is not None and not recorder.runs_python and (why := why_not_graph(graph.graph)):
        state.leave_alone(why)
        return run
    state.written = None if graph is None else written_inputs(graph.graph)

    def of_list(values: list[Any]) -> Any:
        results = state.call(values)
        if results is None:
            return state.timed(values)
        values.clear()
        return results

    def of_values(*values: Any, together: tuple[Any, ...] = (), seen: int = 0) -> Any:
        inputs = Joined(values, together) if together else values
        results = state.call(inputs, seen)
        return state.timed(inputs) if results is None else results

    takes_list = known_of(run).takes_list
    ways: dict[str, Any] = {"lends": state.lend_from, "leaves_out": state.leave_out, "spares": state.spares}
    if not takes_list:
        ways |= {"at_once": state.at_once, "counts": state.count}
    known = {**vars(known_of(run)), **ways, "takes_together": not takes_list}
    return described(of_list if takes_list else of_values, **known)


def all_replayed() -> list[Replayed]:
    """Everything that may hold recordings now."""
    return list(_all)
