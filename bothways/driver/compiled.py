"""One compiled function: its dispatcher, what happens on a miss, and the history the user can read.

A miss captures, hands the graph to the backend and adds a program; what cannot be captured runs as plain
Python. Misses of one function are handled one at a time, hits take no lock.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bothways import errors
from bothways.backends.aot import Lowering
from bothways.backends.eager import eager
from bothways.capture.capture import Capture
from bothways.capture.program.guard_text import inner_names
from bothways.config import config
from bothways.driver import limits, stances
from bothways.driver.breaks import BREAKS_AROUND, note_break
from bothways.driver.continuing import connect
from bothways.driver.everyone import everyone, register
from bothways.driver.failing import describe_check, failing_check
from bothways.driver.first_calls import run_first
from bothways.driver.guesses import ran_plainly
from bothways.driver.hooks import compiled_hook
from bothways.driver.pools import Pool, forget_pools, settings_now, shared_pool
from bothways.driver.redefined import passed
from bothways.errors import Break, Unsupported
from bothways.pipeline import MissedCall, Options, Verdict, compile_call
from bothways.record import logs
from bothways.record.compilation import Compilation, Conclusion
from bothways.record.counters import counters
from bothways.record.history import History
from bothways.record.standing import (
    Standing,
    begins_at,
    limit_reason,
    limit_text,
    lines_of,
    short,
    standing_of,
    title_of,
)
from bothways.runtime.dispatcher import INSTEAD, PLAIN, Dispatcher, call_plainly
from bothways.runtime.logs import capturing, stack_left
from bothways.runtime.program import COMPILED_CALLEE, COMPILED_HOOK, DISAGREE, Program
from bothways.runtime.stamps import Body
from bothways.runtime.tracebacks import cut
from bothways.runtime.tracing import Tracing, say_traced, who_traces

__tracebackhide__ = True  # pytest shows none of its frames
# So many frames capturing and compiling may need; a call that is nested so deeply that they are not there runs plainly.
STACK_OF_A_CAPTURE = 250


def compiled_function(
    function: types.FunctionType, options: Options, history: History | None = None, *, kind: Any = None
) -> types.FunctionType:
    """The compiled function that the user calls; its state is its ``__bothways__``.

    ``history`` is that of the function this one is a part of: a continuation, or called at a break. Functions of one
    code and one ``kind`` share their programs.
    """
    return CompiledFunction(function, options, history, kind).take()


def compiled_hooks(function: types.FunctionType) -> types.FunctionType:
    """The compiled function that runs the hooks of one place."""
    return compiled_function(function, Options(eager, "eager", fullgraph=True, of_hooks=True))


class CompiledFunction:
    """The state behind a compiled function, which lives as long as that function: nothing here leads back to it."""

    def __init__(
        self, function: types.FunctionType, options: Options, history: History | None = None, kind: Any = None
    ) -> None:
        self.original, self.options = function, options
        self._plain = functools.partial(call_plainly, function)
        self._body = Body.of(function)
        self._kind, self._is_part = kind, history is not None
        self._has_told = False  # that another tracer traced a call
        # The namespace of the generated function leads here.
        names = {COMPILED_HOOK: _COMPILED_HOOK, DISAGREE: functools.partial(ran_plainly, self)}
        self.dispatcher = Dispatcher(function, self._miss, inner_names, names)
        if history is not None:
            history.parts.append(weakref.ref(self))
        self._take_part(self._own_pool(history) if self.is_alone else self._common_pool())
        self._forced: dict[Any, types.FunctionType] = {}  # the same function with another backend, by backend
        # Where calls go since the original was given other code or defaults.
        self._successor: types.FunctionType | None = None
        self._succeeded: Callable[..., Any] | None = None
        self._redefinitions = 0
        with stances.unchanged():
            register(self)
            self.stand(stances.current())

    def take(self) -> types.FunctionType:
        """The function that the user calls."""
        function = self.dispatcher.take()
        function.__bothways__ = self  # type: ignore[attr-defined]
        return function

    # What is shared with other functions of the same code.

    @property
    def is_alone(self) -> bool:
        """Whether it shares nothing: parts belong to a function, and hooks to the place where they are registered."""
        return self._is_part or self.options.of_hooks

    def _own_pool(self, history: History | None = None) -> Pool:
        return Pool(self.options, compiled_function, history)

    def _common_pool(self) -> Pool:
        return shared_pool(self.original, self.options, self._kind, compiled_function)

    def _take_part(self, pool: Pool) -> None:
        self._pool = pool
        self.dispatcher.namespace[COMPILED_CALLEE] = pool.callees.compiled

    @property
    def history(self) -> History:
        return self._pool.history

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Pool]:
        """With the lock of the pool: of the one that it is in now, where a reset came while this thread waited."""
        while True:
            pool = self._pool
            with pool.lock:
                if self._pool is pool:
                    yield pool
                    return

    def stand(self, stance: stances.Stance) -> None:
        """Do with calls what a stance says."""
        if self._succeeded is not None:
            return  # the successor does
        if stance.name == "force_eager":
            self.dispatcher.redirect(PLAIN)
        elif stance.backend is not None and not self.options.forced:
            if stance.backend not in self._forced:
                options = replace(self.options, backend=stance.backend.backend, backend_name="forced", forced=True)
                self._forced[stance.backend] = compiled_function(self.original, options, kind=self._kind)
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
            if capturing() or stack_left() < STACK_OF_A_CAPTURE:
                return self._plain(values)
            if self._pool.take(self.dispatcher, self._body, values) is not None:
                return self.dispatcher.call(values)
            if self._pool.stopped is not None:  # by another function
                self._stop(self._pool.stopped)
                return self._plain(values)
            if stance == "eager_on_recompile":
                return self._plain(values)
            if stance == "fail_on_recompile":
                name = self.original.__qualname__
                raise errors.RecompileError(f"{name} would be compiled, and the stance is {stance!r}")
            if self._pool.budget.pause > 0:
                self._pool.budget.pause -= 1
                return self._plain(values)
            with self._locked() as pool:
                begin = limits.clock()
                program = self._program_for(pool, values)
                in_vain, end = pool.in_vain, limits.clock()
            # Outside of the handler, so that a user's exception has no context of ours.
            if program is None:
                result = self._plain(values)
            else:
                result = self._run_first(program, values)
            if in_vain is not None:
                self._came_through(program, in_vain, end - begin, limits.clock() - end)
            return result
        except BaseException as error:
            raise cut(error)  # noqa: B904  # it is the same
        finally:
            del values  # an exception keeps the frames it has passed

    def _run_first(self, program: Program, values: tuple[Any, ...]) -> Any:
        run = functools.partial(self.dispatcher.run, program, values, functools.partial(self._unstable, program))
        backend = self.options.backend
        believes = not self.options.fullgraph and (backend is eager or isinstance(backend, Lowering))
        return run_first(program, run, functools.partial(self._plain, values), self._end_program, believes)

    def _came_through(self, program: Program | None, in_vain: Break, capturing: float, running: float) -> None:
        """A call was captured in vain, and plain Python did not raise. (What raises has only the limit.)"""
        with self._locked():
            if in_vain.code == "op_failed" and program is not None and not self.options.fullgraph:
                # The operation works, or its error is caught: from now on it is a break and no more.
                self.history.disbelieved.add(in_vain.where)
                self.dispatcher.drop(program)
            self._pool.budget.spend(capturing, running)
            if self._pool.budget.is_exhausted and not self.dispatcher.is_plain:
                self._go_plain(self._pool.budget.text(in_vain))

    def _redefined(self, values: tuple[Any, ...]) -> Any:
        """The user's function has other code or defaults than when it was compiled: begin again with those.

        From now on calls go to a compiled function that has the signature of the moment.
        """
        args, kwargs = passed(self._body, values)
        with self._locked():
            self.reset()
            self._succeeded = self._through
            self.dispatcher.redirect(INSTEAD, self._succeeded)
        return self._through(*args, **kwargs)

    def _through(self, *args: Any, **kwargs: Any) -> Any:
        with self._locked():
            if self._successor is None or not self._body.holds():
                self._body = Body.of(self.original)
                self._successor = self._pool.part(self.original) if self._may_begin_again() else self.original
            successor = self._successor
        return successor(*args, **kwargs)

    def _may_begin_again(self) -> bool:
        self._redefinitions += 1
        if self._redefinitions <= config.recompile_limit:
            return True
        self._go_plain("it was given other code or defaults more than config.recompile_limit times. Pass what changes.")
        self.dispatcher.redirect(PLAIN)
        return False

    def _program_for(self, pool: Pool, values: tuple[Any, ...]) -> Program | None:
        """The program that takes these values, captured now; None when they have to run as plain Python."""
        generation = self.dispatcher.generation
        pool.in_vain = None
        reason: str | None = None
        failed: str | None = None
        pool.lines_left.failing = led_by = []
        for program in self.dispatcher.by_recency:
            check = failing_check(program, self.dispatcher, values)
            if check is None:  # another thread was here first
                self.dispatcher.check_table(program, values)
                return program
            failed = failed or describe_check(check)
            if program.body:
                led_by.append(check.led_by)
                reason = reason or describe_check(check)
        shared = pool.take(self.dispatcher, self._body, values)
        if shared is not None:  # another function was
            return shared
        if self.dispatcher.is_plain or not self._body.holds():  # while this thread waited for the lock
            return None
        for has_body, why in pool.why_not(self.dispatcher, self.original, values) if failed is None else ():
            failed, reason = failed or why, reason or (why if has_body else None)
        record = self._begin(pool, reason or failed)
        try:
            captured = self._compiled(pool, values, record, reason, failed)
        except Exception as error:
            record.fail(error)
            raise
        if captured is None or not self._body.holds():  # another thread has replaced the code, or defaults, meanwhile
            stopped = self.dispatcher.stopped if self.dispatcher.is_plain else pool.gave_up
            record.conclude(Conclusion.PLAIN, stopped)
            return None
        if record.conclusion is not Conclusion.ONCE and self.dispatcher.add(captured.program, generation):
            pool.add(record)
        return captured.program

    def _begin(self, pool: Pool, failed: str | None) -> Compilation:
        """Begin the record of a compilation."""
        original = self.original
        record = Compilation(
            original.__qualname__, self.options.backend_name, begins_at(original), failed, is_first=pool.is_new
        )
        record.settings, record.code, record.cuda_graphs = settings_now(), lines_of(original), self.options.cuda_graphs
        pool.history.add(record)
        pool.is_new = False
        return record

    def _compiled(
        self, pool: Pool, values: tuple[Any, ...], record: Compilation, reason: str | None, failed: str | None
    ) -> Capture | None:
        """Send the call down the road; None when it has to run as plain Python."""
        arguments = dict(zip(self.dispatcher.parameters, values, strict=True))
        history = pool.history
        learned = history.disbelieved, history.turned, pool.breaks.may_wait, history.left
        call = MissedCall(self.original, arguments, self.options, f"{pool.serials.next()}_", pool.sizes, *learned)
        try:
            captured = compile_call(call, record, functools.partial(self._judge, record, reason, failed))
        except Unsupported as unsupported:
            self._give_up(unsupported, record)
            return None
        except errors.BackendFailed as error:
            if isinstance(error.__cause__, RecursionError):
                pool.give_up("the backend ran out of stack")
                pool.in_vain = Break("too_deep", pool.gave_up)
                return None
            raise
        if captured is None:
            return None
        connect(captured, self.original, pool)
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
        if not self._pool.breaks.is_only_now(captured.broke):
            return Verdict.COMPILE
        record.conclusion = Conclusion.ONCE
        self.history.turned.add((captured.broke.where, *captured.broke.stack)[-1])  # in a loop, or it had waited
        return Verdict.ONCE

    def _judge_escape(self, record: Compilation, end: Break, failed: str | None) -> Verdict:
        """The function raises on these values: keep when, so that they are not captured each time."""
        self._note_break(end, record)
        self._pool.give_up(short(end), once=end.of_first_call)
        record.conclude(Conclusion.PLAIN, self._pool.gave_up)
        if self._pool.breaks.is_only_now(end) or (failed is not None and not self._has_room(failed)):
            return Verdict.REFUSE
        self._pool.in_vain = end
        return Verdict.AS_IT_IS

    def _give_up(self, unsupported: Unsupported, record: Compilation) -> None:
        """What cannot be captured raises (fullgraph) or runs as plain Python."""
        self._note_break(unsupported.break_, record)
        if self.options.of_hooks and unsupported.break_.code == "torch_mode":
            return
        self._pool.give_up(short(unsupported.break_), once=unsupported.break_.of_first_call)
        if self._pool.breaks.is_only_now(unsupported.break_):
            return
        if self.options.fullgraph:
            try:
                raise unsupported
            finally:
                del unsupported  # its traceback leads to this frame
        if unsupported.break_.code in BREAKS_AROUND:
            self._pool.budget.wait()
            return
        self._pool.in_vain = unsupported.break_
        # The next call may be nested less deeply.
        is_nested = unsupported.break_.code == "too_deep" and stack_left() < STACK_OF_A_CAPTURE * 2
        if not is_nested:
            self._count_break(unsupported.break_)

    def _note_break(self, end: Break, record: Compilation | None) -> None:
        note_break(end, record, self.history, self.original, self.options.backend_name)

    def _count_break(self, end: Break) -> None:
        if self._pool.breaks.is_last(end):
            self._stop(short(end))

    def _tell(self, tracing: Tracing) -> None:
        """Say once that a call ran plainly because another tracer traces it."""
        self._pool.give_up(f"{tracing.name} is active")
        self._note_break(Break("torch_mode", self._pool.gave_up), None)
        if self._has_told or tracing.is_own or capturing():
            return
        self._has_told = True
        say_traced(self.original.__qualname__, tracing)

    def _unstable(self, program: Program, *values: Any) -> Any:
        """A program's own guards failed on the call it was made from: it could never be hit again."""
        check = failing_check(program, self.dispatcher, values)
        end = Break("unstable_guard", describe_check(check) if check else "a guard changed its answer")
        self._end_program(program, end)
        return self._plain(values)

    def _end_program(self, program: Program, end: Break) -> None:
        with self._locked():
            self.dispatcher.drop(program)
            self._note_break(end, next((one for one in self.history.compilations if one.made is program), None))
            self._count_break(end)

    def _may_recompile(self, record: Compilation, reason: str) -> bool:
        record.is_recompilation, record.failed_guard = True, reason
        logs.recompiling(record)
        if config.error_on_recompile:
            raise errors.RecompileError(f"{self.original.__qualname__} would be compiled again: {reason}")
        return self._leaves_a_line() or self._has_room(reason)

    def _has_room(self, reason: str) -> bool:
        """Whether there may be one more program; those that only say when the function raises count as well."""
        count = len(self._pool.programs)
        if count < config.recompile_limit + self._pool.lines_left.room:
            return True
        if not self.options.of_hooks:
            limits.say(limit_text(title_of(self.original), count, reason))
        self._stop(limit_reason(count, reason))
        return False

    def _leaves_a_line(self) -> bool:
        left, is_whole = self._pool.lines_left, self.options.fullgraph or self.options.of_hooks
        is_full = len(self._pool.programs) >= config.recompile_limit + left.room
        return is_full and not is_whole and left.leave_one(self.original.__code__)

    def _stop(self, reason: str) -> None:
        self._pool.stop(self.dispatcher, self.original, reason)

    def _go_plain(self, reason: str) -> None:
        self._stop(reason)
        limits.say(f"{title_of(self.original)} runs as plain Python from now on: {reason}")

    # For reports and for reset().

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
        return [program for function in self._functions for program in function._pool.programs]

    @property
    def standings(self) -> list[Standing]:
        """For reports: which of them are compiled, which are plain Python, and why."""
        callees = [callee for function in self._functions for callee in function._pool.callees.left_out.values()]
        return [*(function._standing() for function in self._functions), *callees, *self.history.rests]

    def _standing(self) -> Standing:
        return standing_of(
            title_of(self.original) + " (redefined since)" * (self._succeeded is not None),
            self._pool.programs,
            is_new=self._pool.is_new,
            stopped=self.dispatcher.stopped if self.dispatcher.is_plain else self._pool.stopped,
            gave_up=self._pool.gave_up,
            stance=stances.current().name,
        )

    def reset(self) -> None:
        """Forget everything, for this function alone."""
        self._begin_in(self._own_pool(self.history if self._is_part else None))

    def start_again(self) -> None:
        """The same for all functions, one by one: those that shared programs share them again."""
        if self.is_alone:
            self.reset()
        else:
            self._begin_in(self._common_pool())

    def _begin_in(self, pool: Pool) -> None:
        """Takes no lock that a capture holds: what another thread captures now is not kept."""
        self.dispatcher.start_again()
        # A call that still runs has the names of before, and one that is captured may be about to take the next.
        pool.serials.go_past(self._pool.serials.last + 1)
        self._take_part(pool)
        self._successor, self._redefinitions = None, 0
        if self._succeeded is not None:
            self.dispatcher.redirect(INSTEAD, self._succeeded)


_COMPILED_HOOK = functools.partial(compiled_hook, compiled_hooks)


def _stand(stance: stances.Stance) -> None:
    for compiled in everyone():
        compiled.stand(stance)


stances.on_change(_stand)


def reset_all() -> None:
    """Forget every program of every compiled function."""
    forget_pools()
    for compiled in everyone():
        compiled.start_again()
    counters.clear()
