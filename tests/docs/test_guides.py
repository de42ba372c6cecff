"""The programs of the guides run, the site's pages lead to each other, and the examples train as plain ones do."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
GUIDES = [ROOT / "README.md", ROOT / "docs" / "report.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
# What stands before the blocks of a page that speaks of a step of the reader's own.
BEFORE = {"report": """
import torch
import bothways

x, y = torch.ones(300, 300), torch.ones(300, 300)


@bothways.compile
def step(x, y):
    return (x @ y).relu() + 1
"""}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAYS = {
    "README": ["step: captured whole"],
    "report": ["step: captured whole", "ms in kernels and ATen calls"],
    "tutorial": ["compiled calls agree", "1 graph; 0 breaks"],
}
SLOW = ["nanogpt", "gan_with_penalty"]  # lora.py needs transformers: tests/ecosystem
EXAMPLES = ["classifier", "functions_and_hooks", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in GUIDES if BLOCK.search(page.read_text())], ids=lambda at: at.stem)
def test_the_program_of_a_guide_runs(page, tmp_path, monkeypatch, capsys):
    """In a file of its own, as a user would type it."""
    program = tmp_path / f"guide_{page.stem}.py"
    program.write_text("\n".join([BEFORE.get(page.stem, ""), *BLOCK.findall(page.read_text())]))
    monkeypatch.chdir(tmp_path)  # some write a file
    loaded(program)
    said = capsys.readouterr().out
    assert all(words in said for words in SAYS.get(page.stem, []))


def test_a_page_of_the_site_for_each_break(tmp_path):
    site = loaded(ROOT / "docs" / "making" / "site.py")
    site.gather(tmp_path / "pages")
    codes = re.findall(r"^## `(\w+)`$", (ROOT / "docs" / "breaks.md").read_text(), re.MULTILINE)
    assert codes and {path.stem for path in (tmp_path / "pages" / "breaks").glob("*.md")} == set(codes)


def test_links_of_the_site_lead_to_its_pages(tmp_path):
    site = loaded(ROOT / "docs" / "making" / "site.py")
    pages = tmp_path / "pages"
    site.gather(pages)
    missing = []
    for page in pages.rglob("*.md"):
        for found in site.LINK.finditer(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)):
            if not (page.parent / found[2]).exists():
                missing.append(f"{page.relative_to(pages)}: {found[2]}")
    assert missing == []


def test_every_page_of_the_navigation_is_there(tmp_path):
    site = loaded(ROOT / "docs" / "making" / "site.py")
    site.gather(tmp_path / "pages")
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) > 15 and [name for name in named if not (tmp_path / "pages" / name).exists()] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_as_plain_python_does(name):
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        trained = loaded(ROOT / "examples" / f"{name}.py").main(3)
    finally:
        sys.path.remove(str(ROOT / "examples"))
    torch.testing.assert_close(torch.tensor(trained["plain"]), torch.tensor(trained["compiled"]), rtol=1e-3, atol=1e-4)
