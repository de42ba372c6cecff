"""Custom functions in a graph, spelled out: ``autograd_function_apply(fwd_body, bwd_body, …)`` over two modules.

Graphs of ours have one node for each, which holds its bodies. What people read, and what backends of theirs are given,
has the bodies as modules of the graph, as torch.compile's have them; ``folded`` makes the one of the other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.node_facts import body_of, facts_of_node, note_body, note_of_node
from bothways.runtime.captured_functions import (
    CapturedFunction,
    FunctionBody,
    autograd_function_apply,
    without_spelling,
)

_CONTEXT = torch.autograd.function.FunctionCtx


def has_functions(graph: torch.fx.Graph) -> bool:
    """Whether a graph calls custom functions whose bodies are graphs."""
    return any(isinstance(node.target, CapturedFunction) for node in graph.nodes)


def spell(module: torch.fx.GraphModule) -> None:
    """Spell out the custom functions of a graph, in place."""
    nodes = [node for node in module.graph.nodes if isinstance(node.target, CapturedFunction)]
    for index, node in enumerate(nodes):
        target: Any = node.target
        graph = module.graph
        names = f"fwd_body_{index}", f"bwd_body_{index}"
        for name, body in zip(names, (target.forward, target.backward), strict=True):
            setattr(module, name, _spelled(body, name))
        with graph.inserting_before(node):
            context = graph.create_node("call_function", _CONTEXT, (), name="function_ctx")
            bodies = tuple(graph.create_node("get_attr", name, name=name) for name in names)
            facts = target.facts
            marks: dict[str, Any] = {"args_tensor_mask": list(facts.mask), "non_differentiable_idx": list(facts.fixed)}
            call = graph.create_node("call_function", autograd_function_apply, (*bodies, *node.args), marks)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        if "stack_trace" in node.meta:
            for other in (context, *bodies, *call.users):  # one line of the user's
                other.meta.setdefault("stack_trace", node.meta["stack_trace"])
        graph.erase_node(node)
    if nodes:
        module.recompile()


def _spelled(body: torch.fx.GraphModule, name: str) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    is_open = False
    for node in body.graph.nodes:
        if node.op != "placeholder" and not is_open:
            note_of_node(graph.call_function(torch_compat.set_grad_enabled, (False,)), is_spelling=True)
            is_open = True
        if node.op == "output":
            note_of_node(graph.call_function(torch_compat.set_grad_enabled, (True,)), is_spelling=True)
        copies[node] = graph.node_copy(node, copies.__getitem__)
        variable = facts_of_node(node).variable
        if variable is not None and node.op.startswith("call"):
            copies[node]._rename(variable)
    spelled = torch.fx.GraphModule(torch.nn.Module(), graph, name)
    note_body(spelled, FunctionBody(body_of(body).facts, is_spelled=True))
    return spelled


def folded(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with one node for each custom function; itself where none is spelled out."""
    if not any(node.target is autograd_function_apply for node in module.graph.nodes):
        return module
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.target is autograd_function_apply:
            forward, backward = (without_spelling(getattr(module, str(body.target))) for body in node.args[:2])
            values = tuple(copies[value] for value in node.args[2:])
            target = CapturedFunction(body_of(forward).facts, forward, backward, len(values))
            copies[node] = graph.create_node("call_function", target, values, name=node.name)
            copies[node].meta = dict(node.meta)
        elif not _is_spelling(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(module, graph)


def _is_spelling(node: torch.fx.Node) -> bool:
    """Whether a node is there for a custom function alone."""
    if node.target is _CONTEXT:
        return True
    return node.op == "get_attr" and bool(node.users) and all(u.target is autograd_function_apply for u in node.users)
