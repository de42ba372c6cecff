"""Which C compiler there is, and the flags it takes: for this CPU, for OpenMP, for vector math.

The best flags are taken for granted until a build fails with them; only then is the compiler asked, feature by
feature, what it can do. What kernels mean depends on no such choice: without the flags for that there are no kernels.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bothways.building.declarations import OF_TWO, VECTORIZED
from bothways.cache.digests import digest_of
from bothways.errors import NoCompiler

# What kernels mean depends on these, so they are part of every set: NaN, infinity and signed zeros are what they are
# even where CC says otherwise, integers wrap around as they do in ATen, products and sums are rounded one by one, and
# one memory may be read as values of several types.
MEANING = "-fno-fast-math -fno-unsafe-math-optimizations -fwrapv -ffp-contract=off -fno-strict-aliasing".split()

# Errors are not read from errno, and floating point traps are off in Python anyway.
FLAGS = [*MEANING, *"-O3 -fno-math-errno -fno-trapping-math -fPIC -w".split()]

# For a compiler that does not know all of these.
PLAIN_FLAGS = [*MEANING, *"-O2 -fPIC".split()]


@dataclass(frozen=True)
class Option:
    """One way to use a feature of the compiler."""

    compile: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolchain:
    """A compiler and how to call it. ``identity`` changes when what it produces may change."""

    command: tuple[str, ...]
    identity: str
    flags: Option
    threads: bool
    vector_math: bool

    def compile_command(self, source: str, output: str) -> list[str]:
        return [*self.command, *self.flags.compile, "-c", source, "-o", output]

    def link_command(self, objects: Iterable[str], output: str) -> list[str]:
        # Without -fopenmp, which would add the compiler's own runtime to PyTorch's. With -O2: after -Ofast in CC, a
        # library that is loaded has the whole process flush denormal numbers to zero.
        return [*self.command, *MEANING, "-O2", "-shared", *objects, "-o", output, *self.flags.link, "-lm"]

    @property
    def fingerprint(self) -> str:
        """All that decides what it makes of a source."""
        return f"{self.identity}\n{self!r}"

    @property
    def unloads(self) -> bool:
        """Whether a library may be unloaded: not when threads that outlive it may look at it again.

        GNU's runtime, which PyTorch holds, does not; LLVM's remembers where a parallel region was.
        """
        runtime = openmp_runtime()
        return not self.threads or (runtime is not None and os.path.basename(runtime).startswith("libgomp"))

    def vectorized(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some functions of the C library that can be called on vectors."""
        return vector_functions(names) if self.vector_math else frozenset()


# Two pieces of memory for a library instead of five: a process may have 65530.
FEW_MAPS = Option((), ("-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,--build-id=none"))

# Python has the C library loaded, and kernels have nothing that would run when they are: a linker that reads neither
# takes half the time.
FEW_FILES = Option((), ("-nostdlib", "-lgcc"))

# The features and their options, best first. What was chosen is a number for each feature.
FEATURES = ("base", "cpu", "openmp", "vector math", "few maps", "few files")
BEST = (0,) * len(FEATURES)

# Shows whether a feature works. Some call the C library: it has to be the one this process has. Only ``MEANS`` is run,
# which asks for what every kernel relies on instead of trusting flags: its ``probe`` returns 1.
CALLS = "void *malloc(__SIZE_TYPE__);\nfloat expf(float);\nfloat probe(float x) { return malloc(1) ? expf(x) : 0; }\n"
MEANS = """\
static int is_larger(int x) { return x + 1 > x; }
static double residue(double x, double y) { return x * y - 1; }
static int differs(double x) { return x != x; }
static int infinities(float x) {
    volatile int found = 0;
    if (x * 2 == INFINITY) found += 1;
    if (x == INFINITY) found += 2;
    if (x * 4 == INFINITY) { if (x == INFINITY) found += 4; }
    return found;
}
int probe(void) {
    volatile int largest = __INT_MAX__;
    volatile double above = 1 + 0x1p-30, below = 1 - 0x1p-30, zero = 0;
    volatile float huge = 0x1.8p127f;
    if (infinities(huge) != 1) return 0;
    return !is_larger(largest) && residue(above, below) == 0 && differs(zero / zero) && 1 / -zero < 0;
}
"""
PROBES: dict[str, str] = {
    "base": MEANS,
    "cpu": CALLS,
    "openmp": """\
int probe(int x) {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 4; ++i) sum += x;
    return sum;
}
""",
    "vector math": """\
#pragma omp declare simd notinbranch
float expf(float);
void probe(float *x) {
#pragma omp simd
    for (int i = 0; i < 64; ++i) x[i] = expf(x[i]);
}
""",
    "few maps": CALLS,
    "few files": """\
void *malloc(__SIZE_TYPE__);
float expf(float);
float probe(int x) {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 4; ++i) sum += x;
    return malloc(1) ? expf(sum) : 0;
}
""",
}


def options(command: tuple[str, ...]) -> dict[str, tuple[Option, ...]]:
    """Feature -> the ways to use it, best first; the last is to go without."""
    runtime = openmp_runtime()
    threads = [
        Option(("-fopenmp",), (runtime,) if runtime else ("-fopenmp",)),
        # Apple's compiler knows OpenMP but has no runtime of its own; PyTorch brings one.
        Option(("-Xpreprocessor", "-fopenmp"), (runtime,) if runtime else ()),
        Option(("-fopenmp-simd",)),
        Option(),
    ]
    # gcc would use half of AVX-512 by default, as older CPUs slow down; PyTorch's own kernels use all of it.
    wide = [Option(("-march=native", "-mprefer-vector-width=512"))] if platform.machine() == "x86_64" else []
    clang = "clang" in os.path.basename(os.path.realpath(command[0]))
    math = Option(("-fveclib=libmvec",) if clang else (), ("-lmvec",))
    return {
        "base": (Option(tuple(FLAGS)), Option(tuple(PLAIN_FLAGS))),
        "cpu": (*wide, Option(("-march=native",)), Option(("-mcpu=native",)), Option()),
        "openmp": tuple(threads),
        "vector math": (math, Option()) if vector_library() is not None else (Option(),),
        "few maps": (FEW_MAPS, Option()) if sys.platform.startswith("linux") else (Option(),),
        "few files": (FEW_FILES, Option()) if sys.platform.startswith("linux") else (Option(),),
    }


def toolchain(chosen: tuple[int, ...] = BEST) -> Toolchain:
    """The compiler, used with the chosen option of each feature."""
    command = compiler()
    parts = [choices[number] for choices, number in zip(options(command).values(), chosen, strict=True)]
    flags = Option(
        tuple(flag for part in parts for flag in part.compile), tuple(flag for part in parts for flag in part.link)
    )
    return Toolchain(
        command, identity(command), flags, threads="-fopenmp" in flags.compile, vector_math="-lmvec" in flags.link
    )


def probe(builds: Callable[[Toolchain, str], str]) -> tuple[int, ...]:
    """The best options that work, one feature after the other. ``builds`` returns what went wrong, if anything.

    What did not work is tried again right after something else did: only then was it not the moment.
    NoCompiler when nothing works.
    """
    features = options(compiler())
    chosen = [len(choices) - 1 for choices in features.values()]
    for position, (feature, choices) in enumerate(features.items()):

        # To go without a feature needs no more than that the compiler works now.
        texts = [PROBES[feature]] * (len(choices) - 1) + [MEANS]

        def problem(number: int, position: int = position, texts: Sequence[str] = texts) -> str:
            tried = [*chosen[:position], number, *chosen[position + 1 :]]
            return builds(toolchain(tuple(tried)), texts[number])

        refused = ""
        for number in range(len(choices)):
            refused = problem(number)
            if not refused:
                chosen[position] = next((other for other in range(number) if not problem(other)), number)
                break
        if refused:
            raise NoCompiler(f"the C compiler does not work: {shlex.join(compiler())}\n{refused}")
    return tuple(chosen)


def is_choice(chosen: tuple[int, ...]) -> bool:
    """Whether this could be what ``probe`` found."""
    features = options(compiler()).values()
    return len(chosen) == len(features) and all(
        0 <= number < len(choices) for number, choices in zip(chosen, features, strict=True)
    )


def compiler() -> tuple[str, ...]:
    """The C compiler to call: ``CC``, which may hold arguments, or the system's."""
    variable = os.environ.get("CC", "")
    try:
        words = shlex.split(variable)
    except ValueError as error:
        raise NoCompiler(f"there is no C compiler: CC={variable!r} cannot be read ({error})") from None
    for name in [words[0]] if words else ["cc", "gcc", "clang"]:
        path = shutil.which(name)
        if path:
            return (path, *words[1:])
    raise NoCompiler(f"there is no C compiler: CC={words[0]!r} was not found" if words else "there is no C compiler")


def identity(command: tuple[str, ...]) -> str:
    """What the result of a build depends on besides its source and flags.

    The compiler is known by its file rather than by asking it: a process that finds everything in the cache starts
    no other one.
    """
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else platform.libc_ver()
    files = [os.path.realpath(command[0])]
    runtime = openmp_runtime()
    if runtime:
        files.append(runtime)
    return "\n".join([repr(command), *map(_file_identity, files), repr(libc), cpu()])


def _file_identity(path: str) -> str:
    try:
        return f"{path} {digest_of({path: path})}"
    except OSError as error:  # it was there a moment ago
        raise NoCompiler(f"there is no C compiler: {error}") from None


CPU_FACTS = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),  # x86
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),  # ARM
    *("cpu", "isa", "uarch"),  # others
}


@functools.cache
def cpu() -> str:
    """What kind of CPU this is, since code for it need not run on others."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            # The first processor stands for all: reading hundreds of them takes the kernel a while.
            first = file.read(8192).split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    facts = [line for line in first.splitlines() if line.split("\t")[0].split(":")[0].strip() in CPU_FACTS]
    return "\n".join([platform.machine(), *facts])


@functools.cache
def openmp_runtime() -> str | None:
    """The file of the OpenMP runtime PyTorch has loaded.

    Kernels are linked to this very file, under whichever name a wheel gives it: with one runtime there is one pool
    of threads, and ``torch.set_num_threads`` holds for both.
    """
    try:
        with open("/proc/self/maps", errors="surrogateescape") as file:  # names of files are bytes
            mapped = dict.fromkeys(line.split(maxsplit=5)[5].rstrip() for line in file if "omp" in line)
    except OSError:
        mapped = dict.fromkeys(map(str, (Path(torch.__file__).parent / "lib").glob("lib*omp*.*")))
    for path in mapped:
        if os.path.basename(path).startswith(("libgomp", "libiomp", "libomp")):
            return path
    return None


@functools.cache
def vector_library() -> ctypes.CDLL | None:
    """glibc's vector math, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libmvec.so.1")
    except OSError:
        return None


# Machine -> the letter and the number of bits of each vector extension a compiler may choose between.
VECTORS: dict[str, tuple[tuple[str, int], ...]] = {
    "x86_64": (("b", 128), ("c", 256), ("d", 256), ("e", 512)),
    "aarch64": (("n", 64), ("n", 128)),
}


def vector_functions(names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that glibc has in every width; a compiler takes for granted that all are there."""
    library, widths = vector_library(), VECTORS.get(platform.machine())
    if library is None or widths is None:
        return frozenset()
    functions = []
    for name in names:
        function = name if name in VECTORIZED else name.removesuffix("f")
        if function not in VECTORIZED:
            continue
        bits, parameters = (64 if name == function else 32), "v" * (2 if function in OF_TWO else 1)
        variants = [f"_ZGV{letter}N{width // bits}{parameters}_{name}" for letter, width in widths if width > bits]
        if all(hasattr(library, variant) for variant in variants):
            functions.append(name)
    return frozenset(functions)
