"""What happens to a program is not the compiler's doing: kills, signals, full disks, forks, thousands of functions.

Each test runs real processes for a while, so these are the job of ``make faults``; BOTHWAYS_FAULTS (1.0) makes all of
them longer or shorter. What is compared is always what plain Python gives.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import faults_threads
import pytest

pytestmark = pytest.mark.faults
SCALE = float(os.environ.get("BOTHWAYS_FAULTS", "1.0"))

# Compiles a training step with kernels of its own and says that it agreed with plain Python.
STEP = """
import os, sys, torch, bothways
bothways.config.kernels_for_small_graphs = True

def program(x, scale):
    return (torch.tanh(x * scale) + x.sigmoid().cumsum(0).sin()).sum()

def agrees(size, scale):
    results = []
    for function in (program, bothways.compile(program, dynamic=False)):
        x = torch.linspace(-1, 1, size).requires_grad_()
        loss = function(x, scale)
        loss.backward()
        results.append((loss.detach(), x.grad))
    (loss, gradient), (other_loss, other_gradient) = results
    return torch.allclose(loss, other_loss, atol=1e-5) and torch.allclose(gradient, other_gradient, atol=1e-5)
"""


def script(body, **environment):
    """Start a process that runs STEP and a body."""
    text = STEP + textwrap.dedent(body)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", text], env={**os.environ, **environment}, **pipes)


def finish(process, timeout=300):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.mark.timeout(1200)
def test_processes_that_are_killed_while_they_build_leave_a_cache_that_works(tmp_path):
    chosen = random.Random(0)
    killed = 0
    for trial in range(int(20 * SCALE)):
        process = script(
            """
            print("ready", flush=True)
            for size in range(40, 80):
                assert agrees(size, 1.5)
            """,
            BOTHWAYS_CACHE_DIR=str(tmp_path),
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(chosen.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed
    for _ in range(2):
        body = "assert all(agrees(size, 1.5) for size in range(40, 50)); print('agreed')"
        assert "agreed" in finish(script(body, BOTHWAYS_CACHE_DIR=str(tmp_path)))


@pytest.mark.timeout(1200)
def test_interrupts_come_out_as_keyboardinterrupt_and_the_next_call_is_right(tmp_path):
    process = script(
        f"""
        import signal, threading, time, random
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored from the beginning
        main, chosen = threading.main_thread(), random.Random(1)
        stop = time.monotonic() + {30 * SCALE}

        def press():
            while time.monotonic() < stop:
                time.sleep(chosen.uniform(0.005, 0.3))
                if armed:
                    signal.pthread_kill(main.ident, signal.SIGINT)

        armed, interrupted, size = False, 0, 40
        threading.Thread(target=press, daemon=True).start()
        while time.monotonic() < stop:
            size += 1
            try:
                armed = True
                right = agrees(size, 1.5)
                armed = False
                assert right
            except KeyboardInterrupt:
                armed = False
                interrupted += 1
                while True:
                    try:
                        assert agrees(size, 1.5)
                        break
                    except KeyboardInterrupt:
                        pass
        print("interrupted", interrupted)
        """,
        BOTHWAYS_CACHE_DIR=str(tmp_path),
    )
    said = finish(process, 600)
    assert int(said.split()[-1]) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", ["0", "48k", "400k"])
def test_a_full_disk_costs_the_cache_and_nothing_else(tmp_path, size):
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    options = "size=4k,nr_inodes=2" if size == "0" else f"size={size}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        body = """
            import warnings
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                assert all(agrees(size, 1.5) for size in range(40, 60))
            assert not any("report" in str(warning.message) for warning in said), said
            print("agreed", len(said))
        """
        said = finish(script(body, BOTHWAYS_CACHE_DIR=str(folder)))
        assert said.startswith("agreed") and int(said.split()[1]) <= 2
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(folder)


@pytest.mark.timeout(1200)
def test_forks_while_other_threads_capture_and_build(tmp_path):
    process = script(
        f"""
        import faulthandler, threading, time
        stop, failures = time.monotonic() + {30 * SCALE}, []

        def work(base):
            step = 0
            while time.monotonic() < stop:
                step += 1
                size = base + step % 60  # sines of larger sums tell the last bit
                if not agrees(size, 1.5):
                    failures.append(size)

        torch.set_num_threads(1)
        threads = [threading.Thread(target=work, args=(base,)) for base in (40, 120)]
        for thread in threads:
            thread.start()
        forks = 0
        while time.monotonic() < stop:
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(30)  # where it hangs, if it does
                right = agrees(30 + forks % 5, 2.5)
                os._exit(0 if right else 1)
            deadline = time.monotonic() + 60
            while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    raise SystemExit("a child hangs")
                time.sleep(0.01)
            assert ended[1] == 0, ended
            forks += 1
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert not failures and forks
        print("forks", forks)
        """,
        BOTHWAYS_CACHE_DIR=str(tmp_path),
    )
    finish(process, 900)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_threads_call_and_compile_while_others_reset(backend):
    seconds = str(300 * SCALE)  # ten minutes in all
    subprocess.run([sys.executable, faults_threads.__file__, seconds, backend], check=True, timeout=1700)


@pytest.mark.timeout(1800)
def test_thousands_of_functions_that_come_and_go_leave_nothing_behind(tmp_path):
    count = max(int(3000 * SCALE), 300)
    process = script(
        f"""
        import gc, linecache

        def used():
            gc.collect()
            with open("/proc/self/maps") as maps, open("/proc/self/statm") as pages:
                return {{
                    "maps": len(maps.readlines()), "memory": int(pages.read().split()[1]) * 4096,
                    "lines": len(linecache.cache), "files": len(os.listdir("/proc/self/fd")),
                }}

        def one(index):
            text = f"def function(x):\\n    return (x * {{index + 2}}.5).sin().sum() + x.cos().sum()\\n"
            names = {{"torch": torch}}
            exec(compile(text, f"<function {{index % 7}}>", "exec"), names)
            compiled = bothways.compile(names["function"])
            x = torch.linspace(0, 1, 4096).requires_grad_()
            compiled(x).backward()
            y = x.detach().clone().requires_grad_()
            names["function"](y).backward()
            assert torch.allclose(x.grad, y.grad, rtol=1e-4, atol=1e-6 * index + 1e-5), (x.grad - y.grad).abs().max()

        for index in range({count} // 3):
            one(index)
        early = used()
        for index in range({count} // 3, {count}):
            one(index)
        late = used()
        print(early, late)
        assert late["maps"] <= early["maps"] + 50, (early, late)
        assert late["files"] <= early["files"] + 5, (early, late)
        assert late["lines"] <= early["lines"] + 50, (early, late)
        assert late["memory"] <= early["memory"] * 1.1 + (16 << 20), (early, late)
        """,
        BOTHWAYS_CACHE_DIR=str(tmp_path),
    )
    print(finish(process, 1700))
