"""The report's page: its HTML, CSS and JavaScript lie here as files, and become one file with the data in it."""

from __future__ import annotations

import base64
import functools
import html
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bothways.source_text import writable

MUCH = 1 << 19  # letters of data, from which on it is worth to compress them
SCRIPTS = ("base.js", "source.js", "sections.js", "graphs.js", "app.js")  # in the order they are needed


@functools.cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def page(data: Mapping[str, Any]) -> str:
    """One HTML file with all that it needs. Nothing in the data can end the element it lies in."""
    text, kind = json.dumps(data, separators=(",", ":"), ensure_ascii=True, default=str), "application/json"
    if len(text) > MUCH:
        text, kind = base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii"), "application/zlib"
    for letter, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(letter, escaped)
    parts = {
        "@KIND@": kind,
        "@CSS@": _file("page.css"),
        "@JS@": "\n".join(map(_file, SCRIPTS)),
        "@DATA@": text,
        "@TITLE@": html.escape(writable(str(data.get("title", "bothways")))),
    }
    whole = _file("page.html")
    for mark, part in parts.items():  # in an order in which what is put in cannot be taken for a mark
        before, _, after = whole.partition(mark)
        whole = f"{before}{part}{after}"
    return whole
