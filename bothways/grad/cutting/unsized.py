"""Which operations of a captured graph cannot be differentiated for all sizes: their formulas ask for plain numbers.

Each operation is traced by itself, with the symbolic sizes its arguments have in the graph. Those that refuse run as
they were captured, with PyTorch's autograd, between parts that are compiled for all sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch
import torch.fx

from bothways.errors import Unsupported
from bothways.fake import NotThin
from bothways.grad.cutting.sections import CONTEXTS, Section, interface, module_of
from bothways.grad.tracing.joint import trace_thin
from bothways.grad.tracing.sizes import Sizes, is_size, sizes_of
from bothways.grad.tracing.traced import USUAL, NotDifferentiable
from bothways.node_facts import facts_of_node, note_of_node
from bothways.symbols import Frozen, Undecided


def mark_unsized(graph: torch.fx.GraphModule, sizes: Sizes, grad: bool) -> bool:
    """Mark the operations that are to run as captured; whether there are any."""
    symbols = [node for node in graph.graph.nodes if node.op == "placeholder" and is_size(node)]
    refusing = [section for section in _operations(graph.graph) if _refuses(section, symbols, sizes, grad)]
    for section in refusing:
        for node in section.nodes:
            note_of_node(node, as_captured=True)
    return bool(refusing)


def _operations(graph: torch.fx.Graph) -> Iterator[Section]:
    """Each operation, with what is taken from its results."""
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or is_size(node) or facts_of_node(node).as_captured:
            continue
        if node.target is not operator.getitem and (node.op == "call_method" or node.target not in CONTEXTS):
            yield Section([node, *(user for user in node.users if user.target is operator.getitem)])


def _refuses(section: Section, symbols: Sequence[torch.fx.Node], sizes: Sizes, grad: bool) -> bool:
    inputs, outputs = interface(section, set())
    examples = [node.meta.get("example_value") for node in inputs]
    if not all(isinstance(example, torch.Tensor) for example in examples) or not outputs:
        return False
    if len(section.nodes) > 1:
        outputs = [node for node in outputs if node is not section.nodes[0]]
    module = module_of(section, [*symbols, *inputs], outputs)
    # Of these tensors only dtype, device and whether they want a gradient are asked; their sizes are the symbols'.
    stand_ins = [
        torch.empty(0, dtype=example.dtype, device=example.device).requires_grad_(grad and _moves(example))
        for example in examples
        if isinstance(example, torch.Tensor)
    ]
    own = sizes_of(module, [*sizes.now, *stand_ins])
    if own is None:
        return False
    with sizes.environment.later():
        try:
            trace_thin(module.forward, stand_ins, grad, USUAL, own[0])
        except (NotThin, Frozen):
            return True
        except (NotDifferentiable, Undecided, Unsupported, RuntimeError):
            return False
    return False


def _moves(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
