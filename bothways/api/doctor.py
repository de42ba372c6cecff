"""``bothways.doctor()``: what there is on this machine, what is wrong with it, and how to mend it, in one screen.

Each row of ``CHECKS`` looks at one thing and gives a ``Finding``. Nothing is assumed from what worked before: the
compiler compiles, the cache is written to, and a function is compiled and compared with the plain one.
"""

from __future__ import annotations

import enum
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from bothways import backends
from bothways.api.compile import compile
from bothways.api.history import history
from bothways.building.build import compiler_problem, cpus, working_tools
from bothways.building.cuda_driver import NoDriver, driver_version
from bothways.building.nvrtc import NoNVRTC, nvrtc
from bothways.building.toolchain import compiler, openmp_runtime
from bothways.cache.disk import DIRECTORY_VARIABLE, Cache
from bothways.cache.disk import directory as cache_directory
from bothways.cache.trust import Untrusted, own_folder, safe_folder
from bothways.calls.call_library import call_library
from bothways.capture.bytecode.opcodes import problem_of_python
from bothways.config import Config, config
from bothways.errors import NoCompiler
from bothways.source_text import printable
from bothways.testing.compare import difference

OLDEST_TORCH = (2, 11)
LITTLE_SPACE = 64 * 2**20  # bytes on the disk of the cache below which kernels will soon not be kept
WIDTH = 100  # characters of one row; the advice stands below


class Health(enum.Enum):
    """How bad it is. The values are what people read."""

    FINE = "ok"
    NOTE = "note"  # slower, or something one may want to know
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: what there is, how bad that is, and what to do about it."""

    what: str
    seen: str
    state: Health = Health.FINE
    advice: str = ""

    def __str__(self) -> str:
        seen, room = " ".join(printable(self.seen).split()), WIDTH - 22
        seen = seen if len(seen) <= room else f"{seen[: room - 1]}…"
        line = f"{self.state.value:<6} {self.what:<14} {seen}"
        return f"{line}\n{' ' * 22}-> {self.advice}" if self.advice else line


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was checked. Print it to read it; ``is_fine`` is False if something is wrong."""

    findings: tuple[Finding, ...]

    @property
    def is_fine(self) -> bool:
        """Whether nothing has to be fixed."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """What has to be fixed."""
        return tuple(finding for finding in self.findings if finding.state is Health.WRONG)

    def __str__(self) -> str:
        notes = sum(finding.state is Health.NOTE for finding in self.findings)
        end = f"{len(self.wrong)} wrong" if self.wrong else "everything works"
        return "\n".join([*map(str, self.findings), f"{end}, {notes} note{'s' * (notes != 1)}."])

    __repr__ = __str__


def doctor() -> Diagnosis:
    """Check Python, PyTorch, the compilers, GPUs, the cache and the configuration, and say how to fix what is wrong.

    The result prints as one screen, which belongs into bug reports; programs read ``.is_fine`` and ``.findings``.
    ``python -m bothways doctor`` prints it, and exits with status 1 if something is wrong.

    >>> diagnosis = bothways.doctor()
    >>> [finding.what for finding in diagnosis.findings][:3]
    ['bothways', 'Python', 'PyTorch']
    """
    return Diagnosis(tuple(finding for check in CHECKS for finding in _checked(check)))


def _checked(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; what goes wrong inside it is a finding as well."""
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        advice = "this should not happen: please report it"
        yield Finding(name, f"{type(error).__name__}: {error}", Health.WRONG, advice)


def _bothways() -> Iterator[Finding]:
    home = Path(__file__).parent.parent
    try:
        version = metadata.version("bothways")
    except metadata.PackageNotFoundError:
        version = "not installed"
    yield Finding("bothways", f"{version}, {home}")


def _python() -> Iterator[Finding]:
    seen = f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}"
    problem = problem_of_python()
    yield Finding("Python", seen) if problem is None else Finding("Python", seen, Health.WRONG, problem)


def _torch() -> Iterator[Finding]:
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    seen = f"{torch.__version__} ({built}), {torch.get_num_threads()} threads on {cpus()} cores"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        yield Finding("PyTorch", seen, Health.WRONG, "pip install 'torch>=2.11'")
    elif torch.get_num_threads() > cpus():
        yield Finding("PyTorch", seen, Health.NOTE, f"more threads than cores: torch.set_num_threads({cpus()})")
    else:
        yield Finding("PyTorch", seen)


def _compiler() -> Iterator[Finding]:
    try:
        command = " ".join(compiler())
    except NoCompiler as error:
        advice = "apt install gcc libc6-dev (or clang), or set CC; until then graphs run as ATen operations"
        yield Finding("C compiler", error.problem, Health.WRONG, advice)
        return
    problem = compiler_problem()
    if problem:
        advice = "fix it, or set CC to another compiler; until then graphs run as ATen operations"
        yield Finding("C compiler", f"{command}: {problem}", Health.WRONG, advice)
        return
    tools = working_tools(None)
    features = [word for word, has in (("threads", tools.threads), ("vector math", tools.vector_math)) if has]
    yield Finding("C compiler", f"{command} ({', '.join(features) or 'neither threads nor vector math'})")
    if not tools.threads:
        advice = "kernels use one thread; a gcc or clang that knows -fopenmp would use more"
        yield Finding("OpenMP", openmp_runtime() or "PyTorch has loaded none", Health.NOTE, advice)
    if call_library() is None:
        seen = "the C library for calls does not work with this Python and PyTorch"
        yield Finding("calls in C", seen, Health.NOTE, "guards are checked in Python, so calls cost more")


def _gpus() -> Iterator[Finding]:
    if torch.version.cuda is None:
        yield Finding("GPU", "this PyTorch is built for the CPU")
        return
    if not torch.cuda.is_available():
        try:
            problem = f"there is a driver ({driver_version()}), but PyTorch sees no GPU"
        except NoDriver as error:
            problem = f"PyTorch is built for GPUs, but there is no driver: {error}"
        advice = "if there should be a GPU, check nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Finding("GPU", problem, Health.NOTE, advice)
        return
    for index in range(torch.cuda.device_count()):
        yield from _gpu(index)


def _gpu(index: int) -> Iterator[Finding]:
    properties = torch.cuda.get_device_properties(index)
    arch = f"sm_{properties.major}{properties.minor}"
    yield Finding(f"GPU {index}", f"{properties.name}, {arch}, {properties.total_memory / 2**30:.0f} GiB")
    advice = "pip install 'bothways[cuda]'; until then graphs on GPUs run as ATen operations"
    try:
        nvrtc_here = nvrtc()
    except NoNVRTC as error:
        yield Finding("NVRTC", str(error), Health.WRONG, advice)
        return
    if nvrtc_here.knows(arch):
        yield Finding("NVRTC", f"{nvrtc_here.version}, driver {driver_version()}")
    else:
        newer = "pip install --upgrade nvidia-cuda-nvrtc"
        yield Finding("NVRTC", f"{nvrtc_here.version} does not know {arch}", Health.WRONG, newer)


def _cache() -> Iterator[Finding]:
    folder = cache_directory()
    if not config.kernel_cache:
        advice = "each process builds its kernels again; config.kernel_cache = True keeps them"
        yield Finding("cache", "switched off", Health.NOTE, advice)
        return
    try:
        cache = Cache(own_folder(folder))
        with cache.workplace() as place:
            (place / "written").write_bytes(b"")
    except Untrusted as error:
        advice = f"set {DIRECTORY_VARIABLE} to a folder that is yours alone (chmod go-w on it and on those above)"
        yield Finding("cache", str(error), Health.WRONG, advice)
        return
    except (OSError, RuntimeError) as error:
        advice = f"set {DIRECTORY_VARIABLE} to a folder that can be written to; until then kernels are not kept"
        yield Finding("cache", f"{folder}: {error}", Health.WRONG, advice)
        return
    info, free = cache.info(), shutil.disk_usage(cache.root).free
    seen = f"{cache.root}, {info.entries} entries, {info.bytes / 2**20:.1f} MiB, {free / 2**30:.1f} GiB free"
    if free < LITTLE_SPACE:
        yield Finding("cache", seen, Health.NOTE, "free some space: what does not fit is built again in each process")
    else:
        yield Finding("cache", seen)


def _temporary_folder() -> Iterator[Finding]:
    folder = tempfile.gettempdir()
    try:
        safe_folder(Path(folder))
    except OSError as error:
        advice = "set TMPDIR to a folder where others cannot replace your files"
        yield Finding("temporary", f"{folder}: {error}", Health.WRONG, advice)


# Variables that change what happens, and what each does.
VARIABLES: dict[str, str] = {
    "BOTHWAYS_DUMP": "where kernels are written",
    "BOTHWAYS_LOGS": "what is printed while programs run",
    "BOTHWAYS_PROGRESS": "the progress line of long compilations",
    DIRECTORY_VARIABLE: "the folder of the cache",
    "CC": "the C compiler",
    "CUDA_VISIBLE_DEVICES": "which GPUs there are",
    "OMP_NUM_THREADS": "how many threads kernels use",
    "TORCHDYNAMO_DISABLE": "1: the drop-in compiles nothing",
    "TORCH_COMPILE_DISABLE": "1: the drop-in compiles nothing",
}


def _settings() -> Iterator[Finding]:
    usual = Config().as_dict()
    changed = [f"{name}={value!r}" for name, value in config.as_dict().items() if value != usual[name]]
    if changed:
        yield Finding("config", ", ".join(changed), Health.NOTE)
    for name, meaning in VARIABLES.items():
        if name in os.environ:
            yield Finding("environment", f"{name}={os.environ[name]!r}: {meaning}", Health.NOTE)


def _backends() -> Iterator[Finding]:
    yield Finding("backends", ", ".join(backends.list_backends()))
    registered = [point.value for point in metadata.entry_points(group=backends.ENTRY_POINT_GROUP, name="bothways")]
    if not registered:
        advice = "install bothways with pip, rather than putting its folder on the path"
        yield Finding("entry point", "torch.compile does not find backend='bothways'", Health.NOTE, advice)


def _example() -> Iterator[Finding]:
    """A function with a backward, compiled to kernels here and now, against the plain one."""

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * weight + 1).tanh().softmax(-1).pow(2).sum()

    generator = torch.Generator("cpu").manual_seed(0)
    x, weight = (torch.randn(64, 64, generator=generator, device="cpu") for _ in range(2))
    results = []
    compiled = compile(step)
    with config.patch(kernels_for_small_graphs=True, suppress_errors=False):
        for function in (step, compiled):
            leaf = weight.clone().requires_grad_()
            loss = function(x, leaf)
            loss.backward()
            results.append((loss.detach(), leaf.grad))
    differs = difference(*results)
    count = sum(compilation.kernels for compilation in history(compiled))
    if differs is not None:
        advice = "please report it; python -m bothways repro writes a script that shows it"
        yield Finding("example", f"compiled and plain differ: {differs}", Health.WRONG, advice)
    elif not count:
        runs = "; ".join(str(one.outcome) for one in history(compiled) if one.outcome is not None)
        yield Finding("example", f"compiled without kernels: {runs}", Health.WRONG, "see above what is wrong")
    else:
        yield Finding("example", f"{count} kernels, forward and backward, give the same results as plain PyTorch")


# What is looked at, in the order people read it.
CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _bothways, _python, _torch, _compiler, _gpus, _cache, _temporary_folder, _settings, _backends, _example,
)  # fmt: skip
