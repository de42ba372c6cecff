"""What a compiled graph depends on, as text: the graph, its inputs, PyTorch's state, the versions of everything.

Two graphs with the same text compile to the same programs, in any process. What has no text raises ``NotSpelled``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.cache.digests import digest_of
from bothways.cache.disk import key_of
from bothways.cache.spelling import NotSpelled, function_name, spelled
from bothways.config import config
from bothways.node_facts import writes_of


def graph_text(graph: torch.fx.GraphModule) -> str:
    """The nodes, with what each gives, where that is noted, and the line of the user's that each comes from."""
    return "\n".join([_node_text(node, graph) for node in graph.graph.nodes])


def _node_text(node: torch.fx.Node, graph: torch.fx.GraphModule) -> str:
    target = node.target if isinstance(node.target, str) else function_name(node.target)
    value = spelled(getattr(graph, target)) if node.op == "get_attr" else value_text(node.meta.get("val"))
    line = node.meta.get("stack_trace", "")
    return f"{node.op} {node.name} = {target}({spelled(node.args)}, {spelled(node.kwargs)}) -> {value} {line}"


def value_text(value: Any) -> str:
    """What is known of a value without its data."""
    if isinstance(value, torch.Tensor):
        # Symbolic sizes are no numbers, and not written down.
        return f"{value.dtype}{spelled(value.shape)}{spelled(value.stride())}{value.device}"
    if isinstance(value, (tuple, list)):
        return f"[{' '.join(map(value_text, value))}]"
    return ""


def inputs_text(inputs: Sequence[torch.Tensor]) -> str:
    """How inputs are laid out, which need gradients, and which share memory."""
    memory: dict[int, int] = {}
    lines = []
    for index, tensor in enumerate(inputs):
        if not torch_compat.is_plain_dense(tensor):
            raise NotSpelled("an input is more than its elements")
        shared = memory.setdefault(torch_compat.storage_identity(tensor), index)
        facts = tensor.storage_offset(), tensor.requires_grad, tensor.is_inference(), shared
        lines.append(f"{value_text(tensor)} {facts}")
    return "\n".join(lines)


def state_text() -> str:
    """PyTorch's state that decides what operations do, and what decides how they are compiled."""
    return f"{torch_compat.operation_state()} {config.recompute} {config.exact_random}"


def program_key(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], kind: str, tools: str) -> str:
    """The key of what a graph of ATen operations is compiled to; ``tools`` says by what."""
    writes = spelled(writes_of(graph))
    layouts = "\n".join(map(value_text, inputs))
    # How ATen lays out results, which is looked at once and then taken for granted, may depend on the state.
    texts = state_text(), graph_text(graph), writes, layouts
    return key_of("program", kind, *texts, tools, versions())


def captured_key(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], expected: Sequence[Any], tools: str
) -> str:
    """The key of how a captured graph is differentiated and compiled; ``expected`` are outlines of its outputs."""
    layouts = value_text(list(expected))
    texts = graph_text(graph), inputs_text(inputs), layouts, state_text()
    return key_of("captured", *texts, tools, versions())


@functools.cache
def versions() -> str:
    """PyTorch, Python, and our own code, known by what its files hold: the same wherever the same is installed."""
    root = Path(__file__).parent.parent
    folders = (path for path, _, _ in os.walk(root) if not path.endswith("__pycache__"))
    paths = [entry.path for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".py")]
    code = digest_of({os.path.relpath(path, root): path for path in paths})
    return f"{sys.version}\n{torch.__version__} {torch.version.git_version}\n{code}"
