"""Builds C sources into shared libraries with the system's compiler, and loads them."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from bothways.lower.c_ops import PRELUDE, VECTORIZED

# No flag here changes what NaN, infinity or signed zeros mean. Errors are not read from errno, floating point traps
# are off in Python anyway, and integers wrap around as they do in ATen.
FLAGS = (
    "-O3 -march=native -fPIC -shared -fopenmp -fno-math-errno -fno-trapping-math -fwrapv -fno-semantic-interposition "
    "-ffp-contract=off -w"
).split()


class NoCompiler(Exception):
    """There is no C compiler that works."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The C compiler to call: ``CC``, or the system's."""
    given = os.environ.get("CC")
    if given:
        return tuple(shlex.split(given))
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return (found,)
    raise NoCompiler("no C compiler was found: install one, or set CC")


@functools.cache
def vector_math() -> str:
    """Declarations of the vector variants glibc has, so that loops over them become vector loops."""
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return ""
    lines = []
    for name in VECTORIZED:
        arity = 2 if name in ("pow", "atan2", "hypot") else 1
        for kind, suffix, lanes in (("double", "", 4), ("float", "f", 8)):
            if hasattr(library, f"_ZGVdN{lanes}{'v' * arity}_{name}{suffix}"):
                parameters = ", ".join([kind] * arity)
                lines.append(f"#pragma omp declare simd notinbranch\n{kind} {name}{suffix}({parameters});")
    return "\n".join(lines) + "\n"


@functools.cache
def link_flags() -> tuple[str, ...]:
    """PyTorch's own OpenMP runtime, so that there is one pool of threads with PyTorch's number of them."""
    flags = ["-lm"]
    if vector_math():
        flags.append("-lmvec")
    return tuple(flags)


@functools.cache
def load_openmp() -> None:
    """Make PyTorch's OpenMP runtime the one that kernels find."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def source_of(kernels: str) -> str:
    """A whole C file."""
    return f"{PRELUDE}\n{vector_math()}\n{kernels}"


def build(source: str) -> ctypes.CDLL:
    """The loaded library of a C source."""
    with tempfile.TemporaryDirectory(prefix="bothways-") as folder:
        path = Path(folder) / "graph.c"
        path.write_text(source)
        library = Path(folder) / "graph.so"
        command = [*compiler(), *FLAGS, str(path), "-o", str(library), *link_flags()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoCompiler(f"{command[0]} failed:\n{done.stderr[:4000]}")
        load_openmp()
        return ctypes.CDLL(str(library))
