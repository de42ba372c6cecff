"""What the GPU benchmarks share: a process for each engine, timing by device events, results as they come.

An engine's process measures row after row and prints one JSON line for each; the parent prints them as they come. The
compilers' disk caches are empty, and each compiler has compiled a trivial function before its first row.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from common import write_results

Step = Callable[[], Any]
NO_GPU = "no GPU: torch.cuda.is_available() is False, and these figures are about GPUs. Nothing was measured."


def require_gpu() -> None:
    """Stop where there is nothing to measure."""
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)


def prepare() -> None:
    """What a process that measures begins with."""
    require_gpu()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # wake up PyTorch and cuBLAS


def measured_steps(step: Step, seconds: float = 0.6) -> dict[str, float]:
    """First step, ms of a step once it repeats, peak memory; and the kernels of one step."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(5):  # a graph of launches is recorded in the first of these
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return {"first_s": first, "ms": milliseconds(step, seconds), "peak_mb": peak / 1e6, **device_time(step)}


def milliseconds(step: Step, seconds: float = 0.6) -> float:
    """The median of some batches of steps, host and device together."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(3, min(2000, int(seconds / 6 / max(time.perf_counter() - started, 1e-6))))
    found = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            step()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / count)
    return statistics.median(found)


def device_time(step: Step, count: int = 3) -> dict[str, float]:
    """The time that a step's kernels take by themselves, in us, and how many they are."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as recorded:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    on_device = [
        event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    total = sum(event.self_device_time_total for event in on_device)
    return {"device_us": total / count, "kernels": len(on_device) / count}


def forget() -> None:
    """Let go of what a row has compiled and allocated."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if "bothways" in sys.modules:
        sys.modules["bothways"].reset()
    gc.collect()
    torch.cuda.empty_cache()


def run_rows(rows: Sequence[str], measure: Callable[[str], dict[str, Any]]) -> None:
    """In an engine's process: measure each row and print what is found, or what went wrong."""
    for row in rows:
        try:
            found = measure(row)
        except Exception as error:  # one row that fails is no reason to lose the others
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps({"row": row, **found}), flush=True)
        forget()


def engine_results(script: str, engine: str, rows: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start an engine's process, and give what it finds for each row as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TRITON_CACHE_DIR=f"{folder}/triton",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
            BOTHWAYS_CACHE_DIR=f"{folder}/bothways",
        )
        command = [sys.executable, script, "--child", engine, *(f"--row={row}" for row in rows)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"row"'):
                    found = json.loads(line)
                    yield found.pop("row"), found
        if process.returncode:
            print(f"the process of {engine} ended with {process.returncode}", file=sys.stderr)


Results = dict[str, dict[str, Any]]


def collected(script: str, engines: Sequence[str], rows: Sequence[str], name: str, **facts: Any) -> Results:
    """What every engine finds for every row, printed as it comes, and written after each engine."""
    results: Results = {row: {} for row in rows}
    for engine in engines:
        for row, found in engine_results(script, engine, rows):
            results[row][engine] = found
            numbers = (f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in found.items())
            print(f"{engine:16} {row:40} {'  '.join(numbers)}", flush=True)
        write_results(name, {"gpu": torch.cuda.get_device_name(), **facts, "rows": results})
    return results
