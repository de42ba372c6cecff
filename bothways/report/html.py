"""The report as an HTML file: facts of explanations, put into the page, which is written where the user wants it."""

from __future__ import annotations

import datetime
import html
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bothways.files import write_whole
from bothways.report.facts import ReportFacts, Times
from bothways.report.page import page

if TYPE_CHECKING:
    from bothways.report.explanation import Explanation


def explanation_page(explained: Sequence[Explanation], times: Times | None = None, title: str = "") -> str:
    """The page of some functions."""
    if times is not None and not isinstance(times, Times):
        raise TypeError(f"profile={times!r}: what `with bothways.profile() as p` has given is expected")
    facts = ReportFacts(times)
    for one in explained:
        facts.add(one.name, one.compilations, one.standings, str(one))
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    about = f"bothways with PyTorch {torch.__version__}, Python {platform.python_version()}, {now}"
    names = ", ".join(one.name for one in explained[:3]) + ", …" * (len(explained) > 3)
    return page({"title": title or names or "bothways", "subtitle": about, **facts.data()})


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write the file, whole or not at all."""
    return write_whole(path, text.encode("utf-8", "backslashreplace"))


def inline_page(summary: str, text: str) -> str:
    """The page inside a notebook, which its styles and keys do not leave."""
    style = "width: 100%; height: 560px; border: 1px solid #8884; border-radius: 8px"
    frame = f'<iframe srcdoc="{html.escape(text)}" style="{style}"></iframe>'
    return f"<pre>{html.escape(summary)}</pre><details><summary>Report</summary>{frame}</details>"
