"""The line on a terminal during a long compilation; nothing where there is no terminal."""

import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import bothways
from bothways.record import progress

ROOT = Path(__file__).parent.parent.parent


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """A terminal in the place of stderr; pytest puts its own there before each test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    return made


def ended():
    return not [thread for thread in threading.enumerate() if thread.name == "bothways-progress"]


def wait_for_end():
    for _ in range(500):
        if ended():
            return
        time.sleep(0.01)


def test_a_terminal_is_told_the_stages_and_the_line_goes(monkeypatch):
    shown = terminal(monkeypatch)
    with progress.compiling("step"):
        line = progress.current_line()
        line.begin("capture")
        time.sleep(0.05)
        line.end()
        line.begin("build")
        line.build(40, lambda: 0.3)
        assert "kernels 12/40" in line.text()
        time.sleep(0.05)
        line.end()
    wait_for_end()
    text = shown.getvalue()
    assert "bothways: step: capture 0." in text and text.endswith("\r\x1b[K")


def test_compilations_tell_their_stages(monkeypatch):
    shown = terminal(monkeypatch)
    compiled = bothways.compile(lambda x: (x.sin() * 2).sum())
    torch.testing.assert_close(compiled(torch.ones(300, 300)), (torch.ones(300, 300).sin() * 2).sum())
    wait_for_end()
    assert "<lambda>: capture 0." in shown.getvalue()


@pytest.mark.parametrize("off", ["no terminal", "variable", "closed"])
def test_it_is_off(off, monkeypatch):
    made = Terminal() if off == "variable" else io.StringIO()
    if off == "closed":
        made.close()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv(progress.VARIABLE, "0" if off == "variable" else "1")
    assert not progress.is_wanted()
    with progress.compiling("step"):
        assert progress.current_line() is None and ended()


def test_another_thread_does_not_write_into_it(monkeypatch):
    shown = terminal(monkeypatch)
    seen = []
    with progress.compiling("step"):
        thread = threading.Thread(target=lambda: seen.append(progress.current_line()))
        thread.start()
        thread.join()
    assert seen == [None]
    wait_for_end()


def test_a_short_call_on_a_real_terminal_says_nothing(tmp_path):
    pty = pytest.importorskip("pty")
    script = "import torch, bothways; bothways.compile(lambda x: x + 1, backend='eager')(torch.ones(2)); print('done')"
    main, other = pty.openpty()
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=other, stdout=subprocess.PIPE, env=environment)
    os.close(other)
    assert process.communicate()[0] == b"done\n"
    try:
        text = os.read(main, 1000)
    except OSError:  # nothing was written
        text = b""
    os.close(main)
    assert b"bothways" not in text
