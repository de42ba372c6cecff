"""The table of ``torch.compiler``'s names, docs/torch-compiler.md, from that of the drop-in."""

from __future__ import annotations

from bothways.api.dropin.compiler_names import NAMES

HEAD = """\
# `torch.compiler` through the drop-in

After `bothways.install()`, or in a program that `python -m bothways` runs, each name of `torch.compiler` in PyTorch
2.13 and 2.15 does this. Written by `make docs`; a test compares it with PyTorch's own list.

| name | who does it | what it does |
| --- | --- | --- |
"""


def text() -> str:
    rows = (f"| `{name}` | {row.fate.value} | {row.says} |" for name, row in NAMES.items())
    return HEAD + "\n".join(rows) + "\n"
