"""The figure of the road: one box a stage, in the order of the road, as an SVG that reads on light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

WIDTH, BOX, GAP, LEFT = 880, 44, 14, 20
# From the left of a box to its words: the longest name fits in wide fonts as well.
INDENT = 204


@dataclass(frozen=True)
class Stage:
    """One stage: its name, what happens, and the folder that does it."""

    name: str
    says: str
    folder: str


# What happens once, at a call that no program takes.
ROAD = [
    Stage("decorate", "compile(f) gives a function with f's own signature, and no program yet", "api/"),
    Stage("bytecode", "a call that no program takes: f's instructions run on values instead of objects", "capture/"),
    Stage("capture", "tensor operations become a graph; the rest is done, or written down as effects", "capture/"),
    Stage("guards", "what was assumed on the way, each with the line that assumed it", "capture/"),
    Stage("joint graph", "the graph runs once on tensors without data, with autograd: both ways", "grad/tracing/"),
    Stage("forward and backward", "the joint graph cut in two; saved between them is what costs least", "grad/halves/"),
    Stage("loop tree", "operations as primitives, fused into kernels, as loops in no language", "lower/schedule/"),
    Stage("dialect", "the loops spelled as C, or as plain Python to compare with", "lower/dialects/"),
    Stage("kernels", "the C built into a small library, kept on disk for the next process", "building/, cache/"),
    Stage("program", "Python: check the guards, run the graph, replay the effects, return", "capture/program/"),
    Stage("dispatcher", "the function itself: its programs one after the other, else a miss", "runtime/"),
]

STYLE = """
    .page { fill: #ffffff; }
    .box { fill: #f4f6f8; stroke: #8a96a3; }
    .name { fill: #1b2733; font-weight: 600; }
    .says { fill: #1b2733; }
    .folder { fill: #5b6b7b; font-family: ui-monospace, monospace; }
    .line { stroke: #5b6b7b; fill: none; }
    .head { fill: #5b6b7b; }
    text { font: 14px system-ui, sans-serif; }
    @media (prefers-color-scheme: dark) {
        .page { fill: #12181f; }
        .box { fill: #1f2933; stroke: #6b7a89; }
        .name, .says { fill: #e8edf2; }
        .folder { fill: #a9b7c4; }
        .line { stroke: #a9b7c4; }
        .head { fill: #a9b7c4; }
    }
"""


def text() -> str:
    height = len(ROAD) * (BOX + GAP) + 96
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
        '<title id="title">The road from a decorated function to its dispatcher</title>',
        f"<style>{STYLE}</style>",
        # The reader's colours and those of the page around the figure need not be the same.
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    for index, stage in enumerate(ROAD):
        lines += _box(stage, 12 + index * (BOX + GAP), is_last=index == len(ROAD) - 1)
    last, first = 12 + (len(ROAD) - 1) * (BOX + GAP) + BOX / 2, 12 + (BOX + GAP) + BOX / 2
    right = WIDTH - 36
    lines.append(
        f'<path class="line" stroke-dasharray="4 4" marker-end="url(#arrow)" '
        f'd="M{right - 24},{last} H{right} V{first} H{right - 24}"/>'
    )
    below = 12 + len(ROAD) * (BOX + GAP) + 12
    for offset, words in enumerate(
        [
            "A call whose guards hold goes from the dispatcher to the program and its kernels; nothing else runs.",
            "Dashed: a miss goes down the road once more. A backward comes back to the joint graph when it first runs.",
            "At what cannot be captured a program does one line of plain Python; the rest of f is compiled like f.",
        ]
    ):
        lines.append(f'<text class="says" x="{LEFT}" y="{below + offset * 22}">{escape(words)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _box(stage: Stage, top: int, *, is_last: bool) -> list[str]:
    width, middle = WIDTH - 80, top + BOX / 2 + 5
    found = [
        f'<rect class="box" x="{LEFT}" y="{top}" width="{width}" height="{BOX}" rx="6"/>',
        f'<text class="name" x="{LEFT + 14}" y="{middle}">{escape(stage.name)}</text>',
        f'<text class="says" x="{LEFT + INDENT}" y="{middle - 8}">{escape(stage.says)}</text>',
        f'<text class="folder" x="{LEFT + INDENT}" y="{middle + 10}">{escape(stage.folder)}</text>',
    ]
    if not is_last:
        x, bottom = LEFT + 60, top + BOX
        found.append(f'<path class="line" marker-end="url(#arrow)" d="M{x},{bottom} V{bottom + GAP}"/>')
    return found
