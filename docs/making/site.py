"""Gathers the pages of the site: those of docs/, a page for each break, and the files of the repository's root.

``python docs/making/site.py FOLDER`` writes them there; ``mkdocs.yml`` builds the site from that folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent
# Files of the repository, and what they are called on the site, which begins with what users want to know first.
ROOTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
MOVED = {"docs/index.md": "how-it-works.md"}
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")
HEADING = re.compile(r"^## `(\w+)`$", re.MULTILINE)


def gather(target: Path) -> None:
    """Write all pages into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("making", "__pycache__"))
    for name, other in MOVED.items():
        (target / name.removeprefix("docs/")).rename(target / other)
    for name, other in ROOTS.items():
        (target / other).write_text((ROOT / name).read_text())
    _write_breaks(target)
    pages = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    for page in sorted(target.rglob("*.md")):
        page.write_text(relinked(page.read_text(), page.relative_to(target), pages))


def relinked(text: str, page: Path, pages: set[str]) -> str:
    """A page whose links lead to pages of the site; what the site has not is named, and not linked."""
    of_root = page.as_posix() in ROOTS.values()

    def follow(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        parts = [] if of_root else ["docs", *page.parent.parts]
        for part in path.split("/"):
            parts = parts[:-1] if part == ".." else parts if part in (".", "") else [*parts, part]
        goal = "/".join(parts)
        goal = {**ROOTS, **MOVED}.get(goal, goal.removeprefix("docs/") if goal.startswith("docs/") else "")
        return f"[{words}]({'../' * len(page.parent.parts)}{goal}{anchor})" if goal in pages else words

    return LINK.sub(follow, text)


def _write_breaks(target: Path) -> None:
    """A page for each break's section, and a list of them at the end of the page of all."""
    page = target / "breaks.md"
    text = page.read_text()
    heads = list(HEADING.finditer(text))
    folder = target / "breaks"
    folder.mkdir()
    for head, behind in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : behind.start() if behind else len(text)].strip()
        (folder / f"{head[1]}.md").write_text(f"# `{head[1]}`\n\n{body}\n\n[All breaks](../breaks.md)\n")
    listed = "\n".join(f"- [`{head[1]}`](breaks/{head[1]}.md)" for head in heads)
    page.write_text(f"{text.rstrip()}\n\n## A page for each\n\n{listed}\n")


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
