"""One training step as bothways sees it, stage after stage: the program behind docs/walkthrough.md.

``python examples/walkthrough.py`` prints every listing of that page. All of them come from what a user can ask:
``bothways.history``, ``dis``, ``linecache``, and the stages called by hand.
"""

import dis
import linecache

import torch

import bothways


def loss_of(x, weight, seen):
    hidden = torch.relu(x @ weight)
    seen.append(len(x))
    return (hidden + 1).log().mean()


def hooked_loss_of(x, weight, seen):
    hidden = torch.relu(x @ weight)
    hidden.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    return (hidden + 1).log().mean()


def inputs():
    x = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)
    weight = torch.linspace(-1, 1, 32 * 16).reshape(32, 16).requires_grad_()
    return x, weight, []


def walk():
    """The listings by name, in the order of the road."""
    # Small graphs run as captured, since ATen is as fast; and what the cache on disk has is not traced again.
    with bothways.config.patch(kernels_for_small_graphs=True, kernel_cache=False):
        compiled = bothways.compile(loss_of)
        compiled(*inputs()).backward()
        [record] = bothways.history(compiled)
        hooked = bothways.compile(hooked_loss_of)
        hooked(*inputs()).backward()
        [hooked_record] = bothways.history(hooked)
        trees = loop_trees()
    forward, backward = record.generated
    return {
        "bytecode": bytecode(loss_of),
        "captured graph": record.graphs_of("captured")[0],
        "guards": "\n".join(map(guard_line, record.guards)),
        "joint graph": record.graphs_of("joint")[0],
        "forward": record.graphs_of("forward")[0],
        "backward": record.graphs_of("backward")[0],
        "loop tree of the forward": trees[0],
        "loop tree of the backward": trees[1],
        "C of the forward": forward.texts["C"],
        "Python of the forward": forward.texts["Python"],
        "C of the backward": backward.texts["C"],
        "Python of the backward": backward.texts["Python"],
        "program": record.source,
        "dispatcher": "".join(linecache.getlines(compiled.__code__.co_filename)),
        "outcome": record.outcome,
        "outcome with a hook": str(hooked_record.outcome).replace("; ", "\n"),
        "program with a hook": "if hit:\n" + hooked_record.source.partition("if hit:\n")[2],
    }


def bytecode(function):
    """The instructions, without the tables behind them."""
    return "\n".join(
        f"{line(instruction):<4}{instruction.offset:>4} {instruction.opname:<22} {instruction.argrepr}".rstrip()
        for instruction in dis.get_instructions(function)
    )


def line(instruction):
    """The number of the line that begins with an instruction."""
    starts = instruction.starts_line  # a number, or in Python 3.13 whether one begins
    return "" if not starts else str(instruction.positions.lineno)


def guard_line(check):
    where = check.where
    return f"{check.text:<58}{f'  # line {where.line}' if where is not None and where.line else ''}".rstrip()


def loop_trees():
    """The kernels of forward and backward before a dialect spells them: lowering, called by hand."""
    from bothways.backends import aot
    from bothways.lower.schedule.steps import lower
    from bothways.lower.schedule.tree import Kernel

    trees = []

    def compiler(graph, given):
        trees.append("\n".join(str(step) for step in lower(graph, given).steps if isinstance(step, Kernel)))
        return graph.forward

    bothways.compile(loss_of, backend=aot(fw_compiler=compiler))(*inputs()).backward()
    return trees


if __name__ == "__main__":
    for name, text in walk().items():
        print(f"== {name} ==\n{text}\n")
