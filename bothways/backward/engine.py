"""Stands where Python looks the autograd engine up, and decides for each backward whether it is captured.

A captured backward is handed over by the engine, compiled, and run in the engine's place; whatever cannot be handed
over runs on PyTorch's engine, before anything was done. While the engine hands over, no code of the user's runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat
from bothways.backward import steps
from bothways.backward.order import order_of
from bothways.backward.programs import BackwardProgram, Compiler
from bothways.backward.recorder import BackwardRecorder, Writer
from bothways.config import config
from bothways.errors import OWN_CODE, UNKNOWN_POSITION, InternalError, Position, RecompileError
from bothways.locks import Lock
from bothways.record.backwards import backwards
from bothways.record.counters import counters
from bothways.torch_compat import backward_engine
from bothways.torch_compat.backward_engine import Tensors

TORCH = (torch.__file__.removesuffix("__init__.py"),)


# What autograd says of nodes that cannot run once more, where that is noticed while they are handed over.
USED_UP = "Trying to "

# What the engine says itself, where it is told to accumulate gradients with a history.
CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter and its gradient "
    "which can cause a memory leak. We recommend using autograd.grad when creating the graph to avoid this. If you "
    "have to use this function, make sure to reset the .grad fields of your parameters to None after use to break the "
    "cycle and avoid the leak."
)

# So many structures are captured for one line of the user's; after that, new ones run on PyTorch's engine.
MOST_CAPTURES = 64


class NotPlaced(Exception):
    """The backward holds something that no program can."""


class Run:
    """One captured backward, while it is handed over and run."""

    def __init__(
        self, compiler: Compiler, dynamic: bool, roots: Any, inputs: Any, where: Position, again: bool
    ) -> None:
        self.compiler, self.dynamic, self.roots, self.inputs, self.where = compiler, dynamic, roots, inputs, where
        self.again = again  # whether its gradients are to be differentiated in turn
        self.recorder: BackwardRecorder | None = None
        self.is_handed_over = False  # the nodes are as they were, or done with
        self.is_started = False  # the program runs, and with it the user's hooks

    def forget(self) -> None:
        """Let go of the user's tensors at once: hooks and nodes that lead to each other are hard enough to free."""
        self.roots, self.inputs, self.recorder = (), (), None

    def make_recorder(self) -> BackwardRecorder:
        if config.error_on_recompile and backwards.captures_at(self.where):
            raise RecompileError(f"the backward at {self.where} is captured again: the autograd graph is another one")
        if backwards.captures_at(self.where) >= MOST_CAPTURES:
            raise NotPlaced("its autograd graph is another one each time")
        self.recorder = BackwardRecorder(self.finish)
        return self.recorder

    def finish(self, recorder: BackwardRecorder, outputs: Tensors) -> tuple[Callable[..., Any], Any]:
        self.is_handed_over = True
        if recorder.refusal is not None:
            raise NotPlaced(recorder.refusal)
        if recorder.environment.conditions:  # which no guard would check before the program runs again
            raise NotPlaced("what autograd does depends on sizes that change")
        names = [group.name for group in recorder.groups]
        order = order_of(self.roots, self.inputs, names)
        if order is None:
            order = list(range(len(names)))
        module = Writer(recorder).write(order, outputs)
        backwards.captured(self.where, module)
        counters["compiled_autograd"]["captures"] += 1
        return run_program, BackwardProgram(module, self.where, recorder.custom_nodes, recorder.unreached)


class ThreadState(threading.local):
    """What a thread is doing."""

    def __init__(self) -> None:
        self.compilers: list[tuple[Compiler, bool] | None] = []
        self.run: Run | None = None


state = ThreadState()


def is_capturing() -> bool:
    """Whether a caller has asked, in this thread, to be given each backward."""
    return bool(state.compilers) and state.compilers[-1] is not None


class Gate:
    """Lets one thread at a time have the engine hand over, while no other thread begins a backward."""

    def __init__(self) -> None:
        self._lock = Lock(self._recover)
        self._free = threading.Condition(self._lock)
        self.running = 0
        self.open_for: int | None = None

    def _recover(self) -> None:
        self.running, self.open_for = 0, None

    def begin_plain(self) -> None:
        with self._free:
            while self.open_for is not None:
                self._free.wait()
            self.running += 1

    def begin_captured(self) -> bool:
        with self._free:
            if self.running:
                return False
            self.running, self.open_for = 1, threading.get_ident()
            return True

    def close(self) -> None:
        """The engine has handed over."""
        with self._free:
            if self.open_for == threading.get_ident():
                backward_engine.set_recorder(None)
                self.open_for = None
                self._free.notify_all()

    def end(self) -> None:
        with self._free:
            self.running -= 1


gate = Gate()


class CapturingEngine:
    """PyTorch's engine, but for backwards that are captured."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def run_backward(
        self, roots: Any, grads: Any, keep_graph: Any, create_graph: Any, inputs: Any = (), *args: Any, **kwargs: Any
    ) -> Any:
        arguments = (roots, grads, keep_graph, create_graph, inputs, *args)
        chosen = choice()
        # Inside a captured backward another one is plain; and so is what a tracer follows.
        if chosen is None or state.run is not None or is_traced():
            return self._run_plain(arguments, kwargs)
        reason = why_plain()
        if reason is None:
            if gate.begin_captured():
                run = Run(*chosen, roots, inputs, user_position(), bool(create_graph))
                if create_graph and kwargs.get("accumulate_grad"):
                    warnings.warn(CYCLE, stacklevel=2)
                return self._run_captured(run, arguments, kwargs)
            reason = "another thread runs a backward"
        backwards.plain(user_position(), reason)
        return self._run_plain(arguments, kwargs)

    def _run_plain(self, arguments: Any, kwargs: Any) -> Any:
        if state.run is not None:  # inside a captured one, whose hooks call for another
            return self.real.run_backward(*arguments, **kwargs)
        gate.begin_plain()
        try:
            return self.real.run_backward(*arguments, **kwargs)
        finally:
            gate.end()

    def _run_captured(self, run: Run, arguments: Any, kwargs: Any) -> Any:
        state.run = run
        try:
            is_done, result = self._handed_over(run, arguments, kwargs)
            # Outside of any handler, so that a user's exception has no context of ours.
            return result if is_done else self.real.run_backward(*arguments, **kwargs)
        finally:
            state.run = None
            steps.callbacks.clear()
            run.forget()
            gate.end()

    def _handed_over(self, run: Run, arguments: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether the engine handed the backward over to a program, and what that gave."""
        try:
            backward_engine.set_recorder(run.make_recorder, run.dynamic)
            try:
                # It hands over what is not differentiated again; the program then is, as the Python that it is.
                roots, grads, keep_graph, _, *others = arguments
                result = self.real.run_backward(roots, grads, keep_graph, False, *others, **kwargs)
            finally:
                gate.close()
                if run.recorder is not None:
                    run.recorder.leave()
            while steps.callbacks:  # each may add others
                steps.callbacks.pop(0)()
            return True, result
        except Exception as error:
            if run.is_started or isinstance(error, RecompileError):
                raise
            if run.recorder is not None and not run.is_handed_over:
                if str(error).startswith(USED_UP):
                    raise
                raise InternalError(f"the backward at {run.where} was not handed over to its end: {error}") from error
            backwards.plain(run.where, str(error).partition("\n")[0])
            return False, None

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Have something called when the backward is over."""
        if state.run is None:
            self.real.queue_callback(callback)
        else:
            steps.call_later(callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def run_program(
    program: BackwardProgram, inputs: list[torch.Tensor], sizes: Any, scalars: Any, hooks: Any, packed: Any
) -> Any:
    """What the engine calls in its own place: it has let go of what its nodes saved."""
    gate.close()
    run = state.run
    if run is not None:
        run.is_started = True
    hooks = program.opened(hooks, inputs)
    if run is None:  # the engine took this thread for the one that captures: no call says what compiles here
        return program.module(inputs, sizes, scalars, hooks, packed)
    compiled = program.compiled_by(run.compiler, run.again)
    if not run.again:
        return compiled(inputs, sizes, scalars, hooks, packed)
    with torch.enable_grad():
        return compiled(inputs, sizes, scalars, hooks, packed)


def choice() -> tuple[Compiler, bool] | None:
    """The compiler that this thread's backwards are for, and whether it wants all sizes to be inputs."""
    if state.compilers:
        return state.compilers[-1]
    return (default_compiler[0], False) if config.capture_backward and default_compiler else None


# What compiles where no call says it; filled by the layer that knows.
default_compiler: list[Compiler] = []


def is_traced() -> bool:
    """Whether a tracer or a function transform wants to see each operation."""
    return bool(torch_compat.dispatch_mode_depth()) or torch_compat.functorch_level() is not None


def why_plain() -> str | None:
    """What keeps a backward on PyTorch's engine, as far as that is known beforehand."""
    if torch.is_anomaly_enabled():
        return "anomaly mode looks at each of autograd's nodes"
    return None


def user_position() -> Position:
    """Where in the user's source the backward is called."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*OWN_CODE, *TORCH)):
        frame = frame.f_back
    if frame is None:
        return UNKNOWN_POSITION
    return Position(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
