"""Writes the parts of docs/ that are made by running the code: listings, the API reference, the figure.

``python docs/making`` writes them; the tests make them again and compare.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import compiler_names
import figure
import reference

DOCS = Path(__file__).resolve().parent.parent
EXAMPLES = DOCS.parent / "examples"
# A marker names the listing of the block that follows it.
LISTING = re.compile(r"(<!-- listing: ([^>]+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)


def made() -> dict[Path, str]:
    """What the made pages ought to be, by their files."""
    page = DOCS / "walkthrough.md"
    return {
        page: filled(page.read_text(), listings()),
        DOCS / "api.md": reference.text(),
        DOCS / "road.svg": figure.text(),
        DOCS / "torch-compiler.md": compiler_names.text(),
    }


def listings() -> dict[str, str]:
    """The listings of the walk, without what differs from machine to machine."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    walkthrough = importlib.import_module("walkthrough")
    texts = {name: str(text).strip("\n") + "\n" for name, text in walkthrough.walk().items()}
    source = Path(walkthrough.__file__).read_text()
    function = re.search(r"^def loss_of.*?(?=\n\n\n)", source, re.DOTALL | re.MULTILINE)
    hooked = re.search(r"^def hooked_loss_of.*?(?=\n\n\n)", source, re.DOTALL | re.MULTILINE)
    assert function is not None and hooked is not None
    texts |= {"function": function[0] + "\n", "function with a hook": hooked[0] + "\n"}
    return {name: text.replace(f"{EXAMPLES}/", "") for name, text in texts.items()}


def filled(page: str, texts: Mapping[str, str]) -> str:
    """A page with its listings as they are now."""
    return LISTING.sub(lambda found: found[1] + texts[found[2]] + found[4], page)


def write() -> None:
    for path, text in made().items():
        path.write_text(text)
        print(path.relative_to(DOCS.parent))
