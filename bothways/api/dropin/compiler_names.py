"""What becomes of each name of ``torch.compiler`` where the drop-in is installed: one row a name, one sentence each.

``docs/torch-compiler.md`` is made of this table; a test compares it with ``torch.compiler.__all__``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fate(enum.Enum):
    """Who does the work. The values are what people read."""

    OURS = "ours"
    KNOWN = "PyTorch's, and capture knows it"
    AS_IT_IS = "PyTorch's, as it is"
    NO_EFFECT = "no effect"


@dataclass(frozen=True)
class CompilerName:
    """What one name does, in one line."""

    fate: Fate
    says: str


NAMES: dict[str, CompilerName] = {
    "compile": CompilerName(Fate.OURS, "`bothways.compile` with PyTorch's arguments; backends by either side's names"),
    "config": CompilerName(
        Fate.AS_IT_IS, "flags of PyTorch's caches and of its dynamic shapes; ours are `bothways.config`"
    ),
    "assume_constant_result": CompilerName(Fate.OURS, "the function is called once, at capture"),
    "reset": CompilerName(Fate.OURS, "forgets what was compiled, on both sides"),
    "allow_in_graph": CompilerName(Fate.OURS, "calls are one node of the graph"),
    "nonstrict_trace": CompilerName(Fate.KNOWN, "the function itself: it is captured like any other"),
    "substitute_in_graph": CompilerName(Fate.OURS, "the Python given is captured in the place of a function in C"),
    "list_backends": CompilerName(Fate.OURS, "the names of both sides"),
    "disable": CompilerName(Fate.KNOWN, "what it returns runs as plain Python, and is a break in a caller's capture"),
    "set_default_backend": CompilerName(Fate.AS_IT_IS, "`torch.compile` without a backend takes the one that was set"),
    "get_default_backend": CompilerName(Fate.AS_IT_IS, "the one that was set, or `inductor`, which is `native` here"),
    "set_stance": CompilerName(
        Fate.OURS, "`bothways.set_stance`; `skip_guard_eval_unsafe` is ignored: guards are cheap"
    ),
    "set_enable_guard_collectives": CompilerName(Fate.NO_EFFECT, "each process compiles when its own guards say so"),
    "cudagraph_mark_step_begin": CompilerName(
        Fate.NO_EFFECT, "memory of a graph is never reused behind a caller's back"
    ),
    "cudagraph_mark_warmup_incomplete": CompilerName(
        Fate.NO_EFFECT, "asks for another warmup of a graph of PyTorch's; ours are recorded when they may be"
    ),
    "load_compiled_function": CompilerName(Fate.AS_IT_IS, "what PyTorch's compiler has saved is run by PyTorch"),
    "precompile": CompilerName(Fate.AS_IT_IS, "what PyTorch compiles ahead is made and run by PyTorch"),
    "PrecompileError": CompilerName(Fate.AS_IT_IS, "what `precompile` raises"),
    "wrap_numpy": CompilerName(
        Fate.AS_IT_IS, "arrays become tensors and back; inside a capture it runs as plain Python"
    ),
    "is_compiling": CompilerName(Fate.KNOWN, "True inside a capture of ours"),
    "is_dynamo_compiling": CompilerName(Fate.KNOWN, "True inside a capture of ours"),
    "is_exporting": CompilerName(Fate.KNOWN, "False inside a capture of ours"),
    "save_cache_artifacts": CompilerName(Fate.OURS, "the bytes of a shipment of the cache, see `bothways.cache.save`"),
    "load_cache_artifacts": CompilerName(Fate.OURS, "puts a shipment into the cache; bytes of PyTorch's go to PyTorch"),
    "keep_portable_guards_unsafe": CompilerName(Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"),
    "skip_guard_on_inbuilt_nn_modules_unsafe": CompilerName(
        Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"
    ),
    "skip_guard_on_all_nn_modules_unsafe": CompilerName(
        Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"
    ),
    "keep_tensor_guards_unsafe": CompilerName(Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"),
    "skip_guard_on_globals_unsafe": CompilerName(Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"),
    "skip_all_guards_unsafe": CompilerName(Fate.NO_EFFECT, "a filter of PyTorch's guards; ours are all checked"),
    "nested_compile_region": CompilerName(
        Fate.OURS, "the function itself: it is inlined, and programs of one code are shared"
    ),
}  # fmt: skip
