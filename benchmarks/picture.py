"""Draws docs/benchmarks.svg from what ``benchmarks/step.py`` measured: step time and first-step time of each model.

    python benchmarks/picture.py [results/step.json]

One group of bars a model, one bar an engine; lengths are shares of the longest of that model, and the numbers stand
beside them. The picture reads on light and dark pages.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "benchmarks.svg"
WIDTH, BAR, GAP, LEFT, NAME = 880, 16, 14, 16, 150
PER_ROW, ENTRY, ROW = 3, 212, 22  # engines in a row of the legend, and how much room each and a row have
COLOURS = ("#8a96a3", "#d08a2e", "#3f7fbf", "#1f9d6b", "#9b59b6")
STYLE = """
    .page { fill: #ffffff; } text { fill: #1b2733; font: 13px system-ui, sans-serif; }
    .head { font-weight: 600; } .small { font-size: 12px; fill: #5b6b7b; }
    @media (prefers-color-scheme: dark) {
        .page { fill: #12181f; } text { fill: #e8edf2; } .small { fill: #a9b7c4; }
    }
"""
# Heading, the field of the results, how a value reads, and its unit.
HALVES = (("time of a step", "step_ms", "{:.1f} ms"), ("time to compile", "compiling_s", "{:.2f} s"))


def picture(results: dict[str, Any]) -> str:
    """The results as an SVG."""
    models: dict[str, dict[str, Any]] = results["models"]
    engines = list(dict.fromkeys(engine for rows in models.values() for engine in rows))
    colours = dict(zip(engines, COLOURS * len(engines), strict=False))
    legend = [engines[first:first + PER_ROW] for first in range(0, len(engines), PER_ROW)]
    height = 50 + len(legend) * ROW + sum(len(rows) * (BAR + 2) + GAP for rows in models.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
        '<title id="title">Time of a training step, and time to compile it</title>',
        f'<style>{STYLE}</style><rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    half = (WIDTH - LEFT - NAME) / 2
    for number, (head, key, shape) in enumerate(HALVES):
        x = LEFT + NAME + number * half
        lines.append(f'<text class="head" x="{x}" y="26">{head}</text>')
        y = 40
        for name, rows in models.items():
            if number == 0:
                lines.append(f'<text class="head" x="{LEFT}" y="{y + 12}">{escape(name)}</text>')
            longest = max(float(found.get(key) or 0) for found in rows.values()) or 1
            for engine, found in rows.items():
                length = max(1.0, (half - 90) * float(found.get(key) or 0) / longest)
                text = shape.format(float(found.get(key) or 0))
                lines.append(f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colours[engine]}"/>')
                lines.append(f'<text class="small" x="{x + length + 6:.1f}" y="{y + 12}">{text}</text>')
                y += BAR + 2
            y += GAP
    for number, row in enumerate(reversed(legend)):
        y = height - 26 - number * ROW
        for x, engine in zip(range(LEFT, WIDTH, ENTRY), row, strict=False):
            lines.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colours[engine]}"/>')
            lines.append(f'<text class="small" x="{x + 18}" y="{y + 10}">{escape(engine)}</text>')
    facts = results.get("environment", {})
    said = f"PyTorch {facts.get('torch', '?')}, {facts.get('cores', '?')} cores"
    lines.append(f'<text class="small" x="{WIDTH - LEFT}" y="{height - 16}" text-anchor="end">{escape(said)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results" / "step.json"
    PICTURE.write_text(picture(json.loads(path.read_text())))
    print(f"written to {PICTURE.relative_to(HERE.parent)}")
