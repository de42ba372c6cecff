"""One compiled function: its dispatcher, what happens on a miss, and the history people can read.

A miss captures, hands the graph to the backend and adds a program; what cannot be captured runs as plain
Python. Misses of one function are handled one at a time, hits take no lock.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bothways import errors
from bothways.backends.eager import eager
from bothways.capture.capture import Capture
from bothways.capture.program.render import inner_names
from bothways.config import config
from bothways.driver import limits, stances
from bothways.driver.callees import Callees
from bothways.driver.failing import describe_check, failing_check
from bothways.driver.hooks import compiled_hook
from bothways.driver.limits import Budget
from bothways.driver.redefined import passed
from bothways.errors import Break, Position, Unsupported
from bothways.locks import Lock
from bothways.pipeline import MissedCall, Options, Verdict, compile_call
from bothways.record import logs
from bothways.record.compilation import Compilation, Conclusion, is_news
from bothways.record.counters import counters
from bothways.record.history import History
from bothways.record.standing import (
    Standing,
    begins_at,
    limit_reason,
    limit_text,
    rest_of,
    short,
    standing_of,
    title_of,
)
from bothways.runtime.dispatcher import INSTEAD, PLAIN, Dispatcher, call_plainly
from bothways.runtime.logs import capturing, stack_left
from bothways.runtime.program import COMPILED_CALLEE, COMPILED_HOOK, Program
from bothways.runtime.resume import Continuation, ResumePoint, resumed, resumption_of
from bothways.runtime.size_history import SizeHistory
from bothways.runtime.stamps import Body
from bothways.runtime.tracing import Tracing, say_traced, who_traces

# The same break this often, and a function is not looked at again: capture costs more than it can win.
BREAKS_BEFORE_PLAIN = 3
# Breaks that are around the call, and may not be at the next: a mode is active, a builtin is replaced.
BREAKS_AROUND = frozenset({"torch_mode", "builtin_replaced"})
# Breaks after which a function is not looked at again at once.
BREAKS_FOR_GOOD = frozenset({"too_long", "too_deep"})
# So many frames capturing and compiling may need; a call that is nested so deeply that they are not there runs plainly.
STACK_OF_A_CAPTURE = 250
# Breaks that are not there at the next call: the program that goes around one is not kept.
BREAKS_ONCE = frozenset({"lazy_state"})

# Every compiled function. A set of references, as its methods are one step each: no other thread comes in between.
_all: set[weakref.ref[CompiledFunction]] = set()


def compiled_function(
    function: types.FunctionType, options: Options, history: History | None = None
) -> types.FunctionType:
    """The compiled function that people call; its state is its ``__bothways__``.

    ``history`` is that of the function this one is a part of: a continuation, or called at a break.
    """
    return CompiledFunction(function, options, history).take()


def compiled_hooks(function: types.FunctionType) -> types.FunctionType:
    """The compiled function that runs the hooks of one place."""
    return compiled_function(function, Options(eager, "eager", fullgraph=True, of_hooks=True))


class CompiledFunction:
    """The state behind a compiled function, which lives as long as that function: nothing here leads back to it."""

    def __init__(self, function: types.FunctionType, options: Options, history: History | None = None) -> None:
        self.original, self.options = function, options
        self._plain = functools.partial(call_plainly, function)
        self._body = Body.of(function)
        self._continuations: dict[tuple[types.CodeType, ResumePoint], types.FunctionType] = {}
        self._callees = Callees(weakref.WeakMethod(self._part))
        self._lock = Lock()
        self._serial, self._is_new = 0, True
        self._is_part = history is not None
        self.history = history or History()
        if self._is_part:
            self.history.parts.append(weakref.ref(self))
        else:
            self.history.root = weakref.ref(self)
        self._sizes = SizeHistory(options.dynamic)
        self._has_told = False  # that somebody else traced a call
        self._gave_up = ""  # for people: why the last call was plain Python that was not captured
        self._breaks: Counter[tuple[str, Position]] = Counter()
        self._budget = Budget()
        self._in_vain: Break | None = None  # why the last capture came to nothing
        # The namespace of the generated function leads here.
        names = {COMPILED_CALLEE: self._callees.compiled, COMPILED_HOOK: _COMPILED_HOOK}
        self.dispatcher = Dispatcher(function, self._miss, inner_names, names)
        self._forced: dict[Any, types.FunctionType] = {}  # the same function with another backend, by backend
        # Where calls go since the original was given other code or defaults.
        self._successor: types.FunctionType | None = None
        self._succeeded: Callable[..., Any] | None = None
        self._redefinitions = 0
        with stances.unchanged():
            _all.add(weakref.ref(self, _all.discard))
            self.stand(stances.current())

    def take(self) -> types.FunctionType:
        """The function that people call."""
        function = self.dispatcher.take()
        function.__bothways__ = self  # type: ignore[attr-defined]
        return function

    def stand(self, stance: stances.Stance) -> None:
        """Do with calls what a stance says."""
        if self._succeeded is not None:
            return  # the successor does
        if stance.name == "force_eager":
            self.dispatcher.redirect(PLAIN)
        elif stance.backend is not None and not self.options.forced:
            if stance.backend not in self._forced:
                options = replace(self.options, backend=stance.backend.backend, backend_name="forced", forced=True)
                self._forced[stance.backend] = compiled_function(self.original, options)
            self.dispatcher.redirect(INSTEAD, self._forced[stance.backend])
        else:
            self.dispatcher.redirect(None)

    # The road of a call that no program takes.

    def _miss(self, *values: Any) -> Any:
        try:
            if not self._body.holds():
                return self._redefined(values)
            if self.dispatcher.is_plain:
                return self._plain(values)
            tracing = who_traces()
            if tracing is not None:
                self._tell(tracing)
                return self._plain(values)
            stance = stances.current().name
            if capturing() or stance == "eager_on_recompile" or stack_left() < STACK_OF_A_CAPTURE:
                return self._plain(values)
            if stance == "fail_on_recompile":
                name = self.original.__qualname__
                raise errors.RecompileError(f"{name} would be compiled, and the stance is {stance!r}")
            if self._budget.pause > 0:
                self._budget.pause -= 1
                return self._plain(values)
            with self._lock:
                begin = limits.clock()
                program = self._program_for(values)
                found, end = self._in_vain, limits.clock()
            # Outside of the handler, so that a user's exception has no context of ours.
            if program is None:
                result = self._plain(values)
            else:
                result = self.dispatcher.run(program, values, functools.partial(self._unstable, program))
            if found is not None:
                self._came_through(program, found, end - begin, limits.clock() - end)
            return result
        finally:
            del values  # an exception keeps the frames it has passed

    def _came_through(self, program: Program | None, found: Break, capturing: float, running: float) -> None:
        """A call was captured in vain, and plain Python did not raise. (What raises has only the limit.)"""
        with self._lock:
            if found.code == "op_failed" and program is not None and not self.options.fullgraph:
                # The operation works, or its error is caught: from now on it is a break and no more.
                self.history.disbelieved.add(found.where)
                self.dispatcher.drop(program)
            self._budget.spend(capturing, running)
            if self._budget.is_exhausted and not self.dispatcher.is_plain:
                self._go_plain(self._budget.text(found))

    def _redefined(self, values: tuple[Any, ...]) -> Any:
        """The user's function has other code or defaults than when it was compiled: begin again with those.

        From now on calls go to a compiled function that has the signature of the moment.
        """
        args, kwargs = passed(self._body, values)
        with self._lock:
            self.reset()
            self._succeeded = self._through
            self.dispatcher.redirect(INSTEAD, self._succeeded)
        return self._through(*args, **kwargs)

    def _through(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if self._successor is None or not self._body.holds():
                self._body = Body.of(self.original)
                self._successor = self._part(self.original) if self._may_begin_again() else self.original
            successor = self._successor
        return successor(*args, **kwargs)

    def _may_begin_again(self) -> bool:
        self._redefinitions += 1
        if self._redefinitions <= config.recompile_limit:
            return True
        self._go_plain("it was given other code or defaults more than config.recompile_limit times. Pass what changes.")
        self.dispatcher.redirect(PLAIN)
        return False

    def _program_for(self, values: tuple[Any, ...]) -> Program | None:
        """The program that takes these values, captured now; None when they have to run as plain Python."""
        generation = self.dispatcher.generation
        self._in_vain = None
        reason: str | None = None
        failed: str | None = None
        for program in self.dispatcher.by_recency:
            check = failing_check(program, self.dispatcher, values)
            if check is None:  # another thread was here first
                self.dispatcher.check_table(program, values)
                return program
            failed = failed or describe_check(check)
            if program.body:
                reason = reason or describe_check(check)
        if self.dispatcher.is_plain or not self._body.holds():  # while this thread waited for the lock
            return None
        record = self._begin(reason or failed)
        try:
            captured = self._compiled(values, record, reason, failed)
        except Exception as error:
            record.fail(error)
            raise
        if captured is None or not self._body.holds():  # another thread has replaced the code, or defaults, meanwhile
            record.conclude(Conclusion.PLAIN, self.dispatcher.stopped if self.dispatcher.is_plain else self._gave_up)
            return None
        if record.conclusion is not Conclusion.ONCE:
            self.dispatcher.add(captured.program, generation)
        return captured.program

    def _begin(self, failed: str | None) -> Compilation:
        """Begin the record of a compilation."""
        original = self.original
        record = Compilation(
            original.__qualname__, self.options.backend_name, begins_at(original), failed, is_first=self._is_new
        )
        self.history.add(record)
        self.history.captures += 1
        self._serial += 1
        self._is_new = False
        return record

    def _compiled(
        self, values: tuple[Any, ...], record: Compilation, reason: str | None, failed: str | None
    ) -> Capture | None:
        """Send the call down the road; None when it has to run as plain Python."""
        arguments = dict(zip(self.dispatcher.parameters, values, strict=True))
        call = MissedCall(
            self.original, arguments, self.options, f"{self._serial}_", self._sizes, self.history.disbelieved
        )
        try:
            captured = compile_call(call, record, functools.partial(self._judge, record, reason, failed))
        except Unsupported as unsupported:
            self._give_up(unsupported, record)
            return None
        except errors.BackendFailed as error:
            if isinstance(error.__cause__, RecursionError):
                self._gave_up = "the backend ran out of stack"
                self._in_vain = Break("too_deep", self._gave_up)
                return None
            raise
        if captured is None:
            return None
        self._connect(captured)
        record.gave(captured.program, self.dispatcher)
        if captured.escaped is None:
            logs.compiled(record)
        return captured

    def _judge(self, record: Compilation, reason: str | None, failed: str | None, captured: Capture) -> Verdict:
        """What is to become of a capture: whether there may be one more program, and for how long."""
        if captured.escaped is not None:
            return self._judge_escape(record, captured.escaped, failed)
        if reason is not None and not self._may_recompile(record, reason):
            return Verdict.REFUSE
        if reason is None and failed is not None and not self._has_room(failed):
            return Verdict.REFUSE
        record.conclusion = Conclusion.PROGRAM
        if captured.broke is None:
            return Verdict.COMPILE
        self._note_break(captured.broke, record)
        if not self._is_only_now(captured.broke):
            return Verdict.COMPILE
        record.conclusion = Conclusion.ONCE
        return Verdict.ONCE

    def _judge_escape(self, record: Compilation, found: Break, failed: str | None) -> Verdict:
        """The function raises on these values: keep when, so that they are not captured each time."""
        self._note_break(found, record)
        self._gave_up = short(found)
        record.conclude(Conclusion.PLAIN, self._gave_up)
        if failed is not None and not self._has_room(failed):
            return Verdict.REFUSE
        self._in_vain = found
        return Verdict.AS_IT_IS

    def _connect(self, captured: Capture) -> None:
        """Compile what a program calls at its end: the ways on after a break."""
        for continued in captured.continuations:
            captured.program.namespace[continued.name] = self._continuation(continued)
            if not continued.is_compiled and (rest := rest_of(continued, captured.broke)) not in self.history.rests:
                self.history.rests.append(rest)

    def _is_only_now(self, found: Break) -> bool:
        """Whether the break is of this call and not of the next; nobody knows what a function is that says so often."""
        self._breaks[found.code, found.where] += found.code in BREAKS_ONCE
        return 0 < self._breaks[found.code, found.where] < BREAKS_BEFORE_PLAIN

    def _continuation(self, continued: Continuation) -> types.FunctionType:
        """What goes on after a break: the rest of the frame, compiled like the function itself."""
        if not continued.is_compiled:
            return resumed(continued.origin, continued.point)
        record = resumption_of(self.original)
        root: CompiledFunction = (record and record.root and record.root()) or self
        key = continued.origin.code, continued.point
        known = root._continuations.get(key)
        if known is None:
            function = resumed(continued.origin, continued.point, weakref.ref(root))
            known = root._continuations[key] = root._part(function)
        return known

    def _part(self, function: types.FunctionType) -> types.FunctionType:
        return compiled_function(function, self.options, self.history)

    def _give_up(self, unsupported: Unsupported, record: Compilation) -> None:
        """What cannot be captured raises (fullgraph) or runs as plain Python."""
        self._note_break(unsupported.break_, record)
        if self.options.of_hooks and unsupported.break_.code == "torch_mode":
            return
        self._gave_up = short(unsupported.break_)
        if self.options.fullgraph:
            try:
                raise unsupported
            finally:
                del unsupported  # its traceback leads to this frame
        if unsupported.break_.code in BREAKS_AROUND:
            self._budget.wait()
            return
        self._in_vain = unsupported.break_
        # The next call may be nested less deeply.
        is_nested = unsupported.break_.code == "too_deep" and stack_left() < STACK_OF_A_CAPTURE * 2
        if not is_nested:
            self._count_break(unsupported.break_)

    def _note_break(self, found: Break, record: Compilation | None) -> None:
        """Write down a break, and tell people of one that is new to them; without a record, the call was not looked
        at."""
        is_new = is_news(found, self.history.breaks)
        if record is None:
            if not is_new:
                return
            record = Compilation(self.original.__qualname__, self.options.backend_name, begins_at(self.original))
            record.conclude(Conclusion.PLAIN, short(found))
            self.history.add(record)
        record.breaks.append(found)
        if is_new:
            counters["graph_break"][found.reason] += 1
            logs.broke(record, found)

    def _count_break(self, found: Break) -> None:
        # By place, not by reason: the reason may name sizes, which change from call to call.
        self._breaks[found.code, found.where] += 1
        if self._breaks[found.code, found.where] >= BREAKS_BEFORE_PLAIN or found.code in BREAKS_FOR_GOOD:
            self.dispatcher.stop_capturing(short(found))

    def _tell(self, tracing: Tracing) -> None:
        """Say once that a call ran plainly because somebody traces it."""
        self._gave_up = f"{tracing.name} is active"
        self._note_break(Break("torch_mode", self._gave_up), None)
        if self._has_told or tracing.is_own or capturing():
            return
        self._has_told = True
        say_traced(self.original.__qualname__, tracing)

    def _unstable(self, program: Program, *values: Any) -> Any:
        """A program's own guards failed on the call it was made from: it could never be hit again."""
        with self._lock:
            self.dispatcher.drop(program)
            check = failing_check(program, self.dispatcher, values)
            found = Break("unstable_guard", describe_check(check) if check else "a guard changed its answer")
            self._note_break(found, next((one for one in self.history.compilations if one.made is program), None))
            self._count_break(found)
        return self._plain(values)

    def _may_recompile(self, record: Compilation, reason: str) -> bool:
        record.is_recompilation, record.failed_guard = True, reason
        logs.recompiling(record)
        if config.error_on_recompile:
            raise errors.RecompileError(f"{self.original.__qualname__} would be compiled again: {reason}")
        return self._has_room(reason)

    def _has_room(self, reason: str) -> bool:
        """Whether there may be one more program; those that only say when the function raises count as well."""
        count = len(self.dispatcher.programs)
        if count < config.recompile_limit:
            return True
        if not self.options.of_hooks:
            limits.say(limit_text(title_of(self.original), count, reason))
        self.dispatcher.stop_capturing(limit_reason(count, reason))
        return False

    def _go_plain(self, reason: str) -> None:
        self.dispatcher.stop_capturing(reason)
        limits.say(f"{title_of(self.original)} runs as plain Python from now on: {reason}")

    # For people and for reset().

    @property
    def acting(self) -> CompiledFunction:
        """Who takes the calls: the one with a stance's backend, where there is a stance with one."""
        forced = self._forced.get(stances.current().backend)
        state: CompiledFunction = self if forced is None else forced.__bothways__  # type: ignore[attr-defined]
        return state

    @property
    def _functions(self) -> list[CompiledFunction]:
        """The function, and what goes on after its breaks or is called there."""
        parts = () if self._is_part else [part() for part in self.history.parts]
        return [self, *(part for part in parts if part is not None)]

    @property
    def programs(self) -> list[Program]:
        return [program for function in self._functions for program in function.dispatcher.programs]

    @property
    def standings(self) -> list[Standing]:
        """For people: which of them are compiled, which are plain Python, and why."""
        callees = [callee for function in self._functions for callee in function._callees.left_out.values()]
        return [*(function._standing() for function in self._functions), *callees, *self.history.rests]

    def _standing(self) -> Standing:
        return standing_of(
            title_of(self.original) + " (redefined since)" * (self._succeeded is not None),
            self.dispatcher.programs,
            is_new=self._is_new,
            stopped=self.dispatcher.stopped if self.dispatcher.is_plain else None,
            gave_up=self._gave_up,
            stance=stances.current().name,
        )

    def reset(self) -> None:
        """Forget everything. Takes no lock that a capture holds: what another thread captures now is not kept."""
        self.dispatcher.start_again()
        self._continuations = {}
        self._callees.forget()
        if not self._is_part:
            self.history = History(root=weakref.ref(self))
        self._sizes.clear()
        self._breaks = Counter()
        self._budget = Budget()
        self._gave_up, self._is_new = "", True
        self._successor, self._redefinitions = None, 0
        if self._succeeded is not None:
            self.dispatcher.redirect(INSTEAD, self._succeeded)


_COMPILED_HOOK = functools.partial(compiled_hook, compiled_hooks)


def _everyone() -> list[CompiledFunction]:
    return [compiled for reference in list(_all) if (compiled := reference()) is not None]


def _stand(stance: stances.Stance) -> None:
    for compiled in _everyone():
        compiled.stand(stance)


stances.on_change(_stand)


def reset_all() -> None:
    """Forget every program of every compiled function."""
    for compiled in _everyone():
        compiled.reset()
    counters.clear()
