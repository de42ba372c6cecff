"""Whether a compiled graph may be recorded at all, and whether that pays off.

Only what does nothing but launch may be: a Python function that is called inside runs once, when it is recorded, and a
result whose size depends on data is waited for.
"""

from __future__ import annotations

import builtins
import linecache
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.ops.waiting import WAITING

LAUNCH = 4.0  # us of the host's, about, for one call that launches
REPLAY = 15.0  # us for a replay, and what is around it
COPIED_IN_A_US = 1.5e6  # bytes, each read and written
_CALLS = re.compile(r"^ +(?:[^#=]*= *)?(?:at_|run_)\w+\(", re.MULTILINE)

# Functions of ours that programs call and that only make or look at tensors.
OURS = frozenset(["as_laid_out", "settle", "_nothing"])


def why_not_graph(graph: torch.fx.Graph) -> str:
    """What of a graph of ATen operations does more than launch; nothing if nothing does."""
    for node in graph.nodes:
        if node.op in ("call_method", "call_module"):
            return f"{node.target} may do more than launch"
        if node.op == "call_function" and (why := _why_not(node.name, node.target)):
            return why
    return ""


def written_inputs(graph: torch.fx.Graph) -> frozenset[int]:
    """The places of inputs that operations of a graph write to: they, or what they may be a window on."""
    inputs = {node: place for place, node in enumerate(graph.find_nodes(op="placeholder"))}
    written: set[torch.fx.Node] = set()
    rest = [source for node in graph.nodes if _writes(node) for source in node.all_input_nodes]
    while rest:
        node = rest.pop()
        if node not in written:
            written.add(node)
            rest += node.all_input_nodes
    return frozenset(inputs[node] for node in written & inputs.keys())


def _writes(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    operation = ops.of_node(node)
    return operation.writes or operation.keeps_statistics


def why_never(run: Callable[..., Any]) -> str:
    """What of a compiled graph does more than launch; nothing if nothing does."""
    code, names = getattr(run, "__code__", None), getattr(run, "__globals__", {})
    if code is None:
        return "what it does is not known"
    for name in code.co_names:
        if name in names and (why := _why_not(name, names[name])):
            return why
    return ""


def _why_not(name: str, value: Any) -> str:
    operation = value if torch_compat.is_plain_overload(value) else torch_compat.overload_of(value)
    if operation is not None:
        if operation.namespace == "bothways":  # collectives, of which those on a GPU are traced that only launch
            return ""
        if operation.namespace not in ("aten", "prims"):
            return f"{operation} may do more than launch"
        name = torch_compat.schema_of(operation).name.partition("::")[2]
        return f"{operation} waits for the device" if name in WAITING else ""
    if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType, types.MethodDescriptorType)):
        return f"{value.__name__} waits for the device" if value.__name__ in WAITING else ""
    if isinstance(value, types.FunctionType):
        is_ours = name in OURS or value.__name__ in OURS or value.__module__ == "bothways.calls.launching"
        return "" if is_ours else f"{value.__name__} is Python, which would run once"
    if isinstance(value, torch.Tensor) or not callable(value) or value in vars(builtins).values():
        return ""
    return "" if isinstance(value, type) else f"{name} may do more than launch"


def launches_of(run: Callable[..., Any]) -> int:
    """How many calls that launch something a compiled graph makes; kernels that are launched together are one."""
    code = getattr(run, "__code__", None)
    return 0 if code is None else len(_CALLS.findall("".join(linecache.getlines(code.co_filename))))


def pays_off(launches: int, values: Sequence[Any], copied: Sequence[int], copied_bytes: int = 0) -> str:
    """Why a replay would take longer than launching one by one; nothing if it would not."""
    copied_bytes = copied_bytes or sum(values[place].nbytes for place in copied)
    launching, replaying = launches * LAUNCH, REPLAY + 2 * len(copied) + copied_bytes / COPIED_IN_A_US
    if launching > 2 * replaying:
        return ""
    return f"{launches} launches take no longer than a replay that copies {copied_bytes / 1e6:.1f} MB"
