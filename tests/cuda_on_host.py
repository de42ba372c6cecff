"""Kernels in CUDA C++ on a CPU: blocks one after the other, the threads of a block as fibers that take turns.

The text of the kernels is the one that a GPU runs; only what stands above it differs. A thread runs until it waits for
the others of its block, and then the next one does; it stays where its block has ended and is that of the next block.
To change between them by ``swapcontext`` would ask the system each time.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bothways.building.cuda_build import AS_GIVEN, BEHIND, LITERAL, planned
from bothways.lower.dialects.c.half_helpers import HALVES
from bothways.lower.dialects.cuda.batching import gathered
from bothways.lower.dialects.cuda.kernels import spell
from bothways.lower.dialects.cuda.prelude import HELPERS, MANY_WORDS
from bothways.lower.dialects.cuda.rows_and_columns import all_arranged

HEAD = """\
#include <stdint.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define KERNEL(threads, blocks) void
#define SHARED static
#define RESTRICT
#define INLINED static
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define UNROLL
#define BY_VALUE const
#define STAYS(word)
typedef struct { unsigned x; } Index;
static Index blockIdx, gridDim, threadIdx;
static jmp_buf scheduler, fibers[1024];
static char *stacks[1024];
static uint64_t slots[1024];
static unsigned char done[1024];
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static void wait_for_others(void) {
    unsigned self = threadIdx.x;
    if (!_setjmp(fibers[self])) _longjmp(scheduler, 1);
    threadIdx.x = self;
}
static unsigned block_threads, arrived[16], turns[16];
static void wait_at(int which, unsigned threads) {
    unsigned own = turns[which];
    if (++arrived[which] == threads) { arrived[which] = 0; ++turns[which]; }
    do wait_for_others(); while (turns[which] == own);
}
#define __syncthreads() wait_at(0, block_threads)
#define TEAM_WAITS wait_at
int failures;
static void __assertfail(const char *what, const char *file, unsigned line, const char *where, uint64_t size) {
    ++failures;
}
"""

RUN = """
typedef void (*Function)(const uint64_t *);
static Function function;
static uint64_t *words;
static void fiber(void) {
    for (;;) {
        function(words);
        done[threadIdx.x] = 1;
        wait_for_others();
    }
}
__attribute__((noinline)) static void go_on(unsigned t) {
    if (_setjmp(scheduler)) return;
    threadIdx.x = t;
    if (stacks[t]) _longjmp(fibers[t], 1);
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = stacks[t] = malloc(65536);
    first.uc_stack.ss_size = 65536;
    first.uc_link = 0;
    makecontext(&first, fiber, 0);
    setcontext(&first);
}
void run(Function which, unsigned blocks, unsigned threads, uint64_t *given) {
    function = which; words = given; gridDim.x = blocks; block_threads = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        unsigned left = threads;
        memset(done, 0, threads);
        while (left) {
            for (unsigned t = 0; t < threads; ++t) {
                if (done[t]) continue;
                go_on(t);
                left -= done[t];
            }
        }
    }
}
"""
MOST = 4096  # words that a kernel is given


def _shuffled(kind: str) -> str:
    return f"""\
static {kind} shuffled_{kind}({kind} value, int bit) {{
    memcpy(&slots[threadIdx.x], &value, sizeof value);
    wait_for_others();
    memcpy(&value, &slots[threadIdx.x ^ bit], sizeof value);
    wait_for_others();
    return value;
}}
"""


HALVES = {
    **HALVES,
    "as_double": "static double as_double(int64_t bits) { double x; memcpy(&x, &bits, 8); return x; }\n",
}
ON_HOST = {
    name: HALVES.get(name) or (_shuffled(name.removeprefix("shuffled_")) if name.startswith("shuffled_") else text)
    for name, text in HELPERS.items()
}
# A helper may use those above it, and the order is that of the texts for a CPU.
ON_HOST = {**{name: text for name, text in HALVES.items()}, **{k: v for k, v in ON_HOST.items() if k not in HALVES}}


def _entry(kernel):
    """A kernel as a function of words, as the driver is given them."""
    values = []
    for place, parameter in enumerate(kernel.parameters.split(", ")):
        if "Words_" in parameter:
            values.append(f"*(const {parameter.split()[1]} *)words")
        elif "*" in parameter:
            values.append(f"(void *)words[{place}]")
        else:
            values.append(f"as_double(words[{place}])" if parameter.startswith("double ") else f"words[{place}]")
    return f"void enter_{kernel.name}(const uint64_t *words) {{ {kernel.name}({', '.join(values)}); }}\n"


@functools.cache
def _library(text: str) -> ctypes.CDLL:
    folder = Path(tempfile.gettempdir()) / "bothways-cuda-on-host"
    folder.mkdir(exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
    if not path.exists():
        source = path.with_suffix(".c")
        source.write_text(text)
        command = [shutil.which("gcc") or "cc", "-O1", "-w", "-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing"]
        # A fortified longjmp takes another fiber's stack for a damaged one; some systems' gcc asks for it by itself.
        command += ["-U_FORTIFY_SOURCE"]
        subprocess.run(
            [*command, "-shared", "-fPIC", str(source), "-o", str(path) + ".part", "-lm"],
            check=True,
            capture_output=True,
            text=True,
        )
        Path(str(path) + ".part").rename(path)
    return ctypes.CDLL(str(path))


def _word(value, kind):
    if kind == "p":
        return value.data_ptr()
    return struct.unpack("Q", struct.pack("d" if kind == "f" else "q", value))[0]


@dataclass(frozen=True)
class SpelledOnHost:
    source: object
    sizes: dict
    uses_threads = False

    @property
    def text(self):
        return str(self.source)

    def functions(self, kinds):
        if not kinds:
            return {}
        entries = "".join(map(_entry, self.source.kernels))
        library = _library(self.source.whole(f"{self.source}\n{entries}") + RUN)
        routines = planned(self.source.plan)

        def function(name, letters):
            def run(*values):
                given = [_word(value, kind) for value, kind in zip(values, letters, strict=True)]
                for one in routines[name]:
                    arguments = (ctypes.c_uint64 * MOST)()
                    for at, (which, how, other) in enumerate(one.arguments):
                        more = 0 if how == AS_GIVEN else other if how in (BEHIND, LITERAL) else given[other]
                        first = 0 if how == LITERAL else given[which]
                        arguments[at] = (first + more) & (2**64 - 1)
                    entry = ctypes.cast(library[f"enter_{one.kernel}"], ctypes.c_void_p)
                    library.run(entry, one.blocks, one.threads, arguments)
                failures = ctypes.c_int.in_dll(library, "failures")
                if failures.value:
                    failures.value = 0
                    raise RuntimeError("device-side assert triggered")

            return run

        return {name: function(name, letters) for name, letters in kinds.items()}

    def key(self, cache):
        return ""


@dataclass(frozen=True)
class CudaOnHost:
    """The CUDA dialect for memory of the CPU."""

    most_words: int = MANY_WORDS  # of a table
    name, suffix, device = "CUDA on a CPU", ".cu", "cpu"

    def tools(self, cache):
        return None

    def arranged(self, kernels):
        return gathered(all_arranged(kernels), self.most_words)

    def spell(self, routines, names):
        return SpelledOnHost(*spell(routines, names, HEAD, ON_HOST))

    def recall(self, key, kinds, cache):
        return None

    def whole(self, text):
        return text
