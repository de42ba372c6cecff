"""Runs the compiler: side by side, in groups of processes that end together, and never for longer than a limit."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from bothways.cache.disk import PASSING_ERRORS

GRACE = 5  # seconds that a process which was killed may take to be gone: one that waits for a dead disk never is

# How compilers put what may be otherwise in a moment.
PASSING_WORDS = re.compile(
    "signal terminated|due to signal|: killed|out of memory|cannot allocate memory|memory exhausted|no space left"
    "|quota exceeded|temporarily unavailable|too many open files|cannot fork|input/output error",
    re.IGNORECASE,
)


class Failure(Exception):
    """What the compiler or the loader said. ``passing`` is what says nothing about the compiler or its input."""

    def __init__(self, said: str, *, passing: bool = False) -> None:
        super().__init__(said)
        self.passing = passing


class TookTooLong(Exception):
    """The compiler was stopped at its limit, of so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def failure_of(error: OSError, what: str) -> Failure:
    return Failure(f"{what}: {error}", passing=error.errno in PASSING_ERRORS)


def run(commands: Sequence[list[str]], folder: Path, seconds: float) -> None:
    """Run commands side by side in ``folder``, which is all they write to; 0 ``seconds`` are as many as it takes."""
    # Messages in English are those that are known; and what a compiler leaves when it is killed goes with the folder.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    deadline = time.monotonic() + seconds if seconds else None
    with contextlib.ExitStack() as closing:
        outputs = [closing.enter_context(_output(folder)) for _ in commands]
        starts = _Starts(commands, outputs, folder, environment)
        try:
            for process in starts.all():
                _wait(process, deadline)
        except subprocess.TimeoutExpired:
            raise TookTooLong(seconds) from None
        except OSError as error:
            raise failure_of(error, commands[0][0]) from None
        finally:
            for process in starts.so_far():
                _end(process)
        for process, output, command in zip(starts.processes, outputs, commands, strict=True):
            if process.returncode:
                raise _failed(command, process.returncode, output)


class _Starts:
    """Starts processes, none of which is lost to Ctrl-C.

    Python raises KeyboardInterrupt in the main thread, and inside ``Popen`` that would be after the process began and
    before its number is known. So another thread starts those of the main thread.
    """

    def __init__(
        self, commands: Sequence[list[str]], outputs: list[IO[bytes]], folder: Path, environment: dict[str, str]
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._to_do = list(zip(commands, outputs, strict=True))
        self._folder, self._environment = folder, environment
        self._error: BaseException | None = None
        self._starting = threading.Lock()  # whoever has it starts a process
        self._done = threading.Event()

    def all(self) -> list[subprocess.Popen[bytes]]:
        """Start them all, or raise what the first that cannot be started does."""
        if threading.current_thread() is not threading.main_thread():
            self._start()
        else:
            try:
                threading.Thread(target=self._start, daemon=True).start()
            except RuntimeError:  # no more threads, or Python is about to end
                self._start()
            self._done.wait()
        if self._error is not None:
            raise self._error
        return self.processes

    def so_far(self) -> list[subprocess.Popen[bytes]]:
        """Those that were started, with no more to come."""
        self._to_do.clear()
        while True:
            with contextlib.suppress(KeyboardInterrupt), self._starting:  # one is on its way out already
                return self.processes

    def _start(self) -> None:
        try:
            while self._start_one():
                pass
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _start_one(self) -> bool:
        with self._starting:
            if not self._to_do:
                return False
            command, output = self._to_do.pop(0)
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self._folder, env=self._environment, process_group=0,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output,
                )
            )  # fmt: skip
        return True


def _output(folder: Path) -> IO[bytes]:
    """Where a compiler says what it has to: no pipe, which a server it leaves behind would keep open, no full disk."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # not this system
            return open(os.memfd_create("bothways"), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _failed(command: list[str], status: int, output: IO[bytes]) -> Failure:
    output.seek(0)
    said = output.read(4000).decode(errors="replace")
    passing = status < 0 or PASSING_WORDS.search(said) is not None
    return Failure(f"{' '.join(command)}\nfailed with status {status}:\n{said}", passing=passing)


def _wait(process: subprocess.Popen[bytes], deadline: float | None) -> None:
    """Wait for a process without looking at it again and again, where the system knows how; Ctrl-C ends the wait."""
    if deadline is None:
        process.wait()
        return
    descriptor = -1
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # not this system
            descriptor = os.pidfd_open(process.pid)
    if descriptor >= 0:
        try:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            os.close(descriptor)
    process.wait(max(0.0, deadline - time.monotonic()))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, with all it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
