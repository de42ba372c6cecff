"""Python processes for programs of tests, without the seconds that loading PyTorch takes.

``run_python`` is ``subprocess.run([sys.executable, ...])``, but for where the process comes from: a process that has
loaded PyTorch, and nothing else, and has computed nothing, is started once, and forks. bothways is not loaded in it:
what is read from the environment when bothways is, is read anew. Tests of how Python starts, and those that set what
libraries read when they are loaded (``OMP_NUM_THREADS``), start a Python of their own.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).parent.parent

_servers = []


def run_python(arguments, *, cwd=None, env=None, input="", check=False):
    """What ``python *arguments`` does: a script, ``-c`` and a program, or ``-m`` and a module; then its arguments."""
    if not _servers:
        _servers.append(_start())
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("in", "out", "err")]
        Path(paths[0]).write_text(input)
        request = {
            "arguments": [os.fsdecode(argument) for argument in arguments],
            "cwd": os.fsdecode(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "paths": paths,
        }
        status = _ask(_servers[0], request)
        texts = [Path(path).read_text(errors="surrogateescape") for path in paths[1:]]
    done = subprocess.CompletedProcess(["python", *arguments], status, *texts)
    if check:
        assert status == 0, texts[1]
    return done


def _ask(server, request):
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())
    except BaseException:  # the test took too long: what it started ends here
        _servers.clear()
        os.killpg(server.pid, signal.SIGKILL)
        raise


def _start():
    environment = {**os.environ, "PYTHONPATH": ""}
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    atexit.register(server.stdin.close)
    return server


# In the other process ------------------------------------------------------------------------------------------


def _serve():
    """Fork for each request, and tell the exit status. In the forked process, returns what it is to be."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def _become(request):
    """Be what Python is when it is started with these arguments."""
    arguments, environment = request["arguments"], request["env"]
    for number, path in enumerate(request["paths"]):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False, errors="surrogateescape")
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(environment)
    first = arguments[0]
    kind = first if first in ("-c", "-m") else "script"
    folder = {"-c": "", "-m": request["cwd"], "script": os.path.dirname(os.path.realpath(first))}[kind]
    # In place of this file's folder: no test is to find what lies beside it.
    sys.path[:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["-c", *arguments[2:]] if kind == "-c" else arguments[1:] if kind == "-m" else arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        if kind == "-m":
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            if kind == "script":
                main.__file__ = first
            text = arguments[1] if kind == "-c" else Path(first).read_text()
            exec(compile(text, "<string>" if kind == "-c" else first, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.stdout.flush()
        raise SystemExit(1) from None


if __name__ == "__main__":
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()  # what is forked need not look through PyTorch again: a tenth of a second of each program
    gc.enable()
    request = _serve()
    if request is not None:
        _become(request)
