"""Pages for the next person: one for each folder, decisions of at most a screen, and no path or name that is gone."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
DOCS, PACKAGE = ROOT / "docs", ROOT / "bothways"


def folders():
    return sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


OF_FOLDERS = [DOCS / "folders" / f"{folder}.md" for folder in (*folders(), "pipeline")]
IN_FOLDERS = [page for folder in ("decisions", "how-to") for page in (DOCS / folder).glob("*.md")]
WRITTEN = sorted([DOCS / "index.md", DOCS / "design.md", *OF_FOLDERS, *IN_FOLDERS])
CHECKED = [*WRITTEN, DOCS / "walkthrough.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MOST_LINES = {"decisions": 40, "folders": 80, "how-to": 200}
MOST_WORDS = 110  # of one paragraph


def name_of(page):
    return page.relative_to(ROOT).as_posix()


BLOCK = re.compile(r"^`{3,}.*?^`{3,}$", re.DOTALL | re.MULTILINE)


def prose(page):
    """The text without blocks of code."""
    return BLOCK.sub("", page.read_text())


@pytest.fixture(scope="module")
def words():
    """Every word of the sources, of our tests and of the files at the top."""
    files = [path for folder in ("bothways", "tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    return {word for path in files for word in re.findall(r"\w+", path.read_text())}


@pytest.mark.parametrize("folder", [*folders(), "pipeline"])
def test_each_folder_has_a_page_that_says_what_to_read_first(folder):
    page = (DOCS / "folders" / f"{folder}.md").read_text()
    assert "**In:**" in page and "**Out:**" in page
    assert "## What always holds" in page and "## What surprised us" in page
    first = page.partition("## Read first")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\d\. ", first, re.MULTILINE)) == 3


def test_each_room_is_on_the_page_of_its_folder():
    for folder in ("capture", "grad", "lower"):
        page = (DOCS / "folders" / f"{folder}.md").read_text()
        rooms = {path.parent.name for path in (PACKAGE / folder).glob("*/*.py")}
        assert [room for room in rooms if f"{folder}/{room}/" not in page] == []


def test_the_index_and_the_design_lead_to_every_page():
    index, design = (DOCS / "index.md").read_text(), (DOCS / "design.md").read_text()
    for folder, text in (("folders", index), ("how-to", index), ("decisions", design)):
        assert [page.name for page in (DOCS / folder).glob("*.md") if f"({folder}/{page.name})" not in text] == []


@pytest.mark.parametrize("page", CHECKED, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def is_path(text):
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", text) is not None and text.endswith((".py", "/", ".md", "Makefile"))


@pytest.mark.parametrize("page", CHECKED, ids=name_of)
def test_files_that_a_page_names_are_there(page):
    """A path is below the package, below the repository, or a file's own name after one of its folder."""
    folder = None
    missing = []
    for text in filter(is_path, re.findall(r"`([^`\s]+)`", prose(page))):
        found = next((place for place in (PACKAGE / text, ROOT / text) if place.exists()), None)
        if found is not None:
            folder = found.parent if found.is_file() else found
        elif folder is None or not (folder / text).exists():
            missing.append(text)
    assert missing == []


OF_FILE = re.compile(r"`(\w+)`s? (?:of|in)\s+`([\w/]+\.py)`")
FILE_WITH = re.compile(r"`([\w/]+\.py)`\s+\(((?:`[\w.]+`(?:,\s+| and )?)+)\)")


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_names_beside_a_file_are_in_that_file(page):
    """As in "`HINTS` of `hints.py`", or "`errors.py` (`ONCE`, `OF_FIRST_CALLS`)"."""
    pairs = [(path, name) for name, path in OF_FILE.findall(prose(page))]
    pairs += [(path, name) for path, names in FILE_WITH.findall(prose(page)) for name in re.findall(r"\w+", names)]
    files = {path: next(place / path for place in (PACKAGE, ROOT) if (place / path).exists()) for path, _ in pairs}
    assert [pair for pair in pairs if not re.search(rf"\b{pair[1]}\b", files[pair[0]].read_text())] == []


NAMES_TESTS = [DOCS / "reliability.md", DOCS / "what-works.md", DOCS / "conformance.md", *CHECKED]
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)(?:::(test_\w+)(…?))?`")


@pytest.mark.parametrize("page", NAMES_TESTS, ids=name_of)
def test_tests_that_a_page_names_are_there(page):
    missing = []
    for path, name, more in TEST.findall(prose(page)):
        file = ROOT / path if path.startswith("tests/") else ROOT / "tests" / path
        end = "" if more else r"\("
        if not file.exists() or not re.search(rf"^def {name}{end}" if name else "", file.read_text(), re.MULTILINE):
            missing.append(f"{path}::{name}")
    assert missing == []


# Names of Python, PyTorch and C that no source of ours mentions.
OF_OTHERS = {"compiled_autograd", "make_fx"}


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_names_that_a_page_mentions_are_in_the_sources(page, words):
    names = [text for text in re.findall(r"`([^`\s]+)`", prose(page)) if re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", text)]
    mentioned = {part for text in names for part in text.removesuffix("()").split(".") if part}
    known = words | OF_OTHERS | set(re.findall(r"\w+", "".join(BLOCK.findall(page.read_text()))))
    assert sorted(part for part in mentioned - known if not is_path(part)) == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_a_page_is_short_and_so_are_its_paragraphs(page):
    most = MOST_LINES.get(page.parent.name, 120)
    assert len(page.read_text().splitlines()) <= most
    for paragraph in re.split(r"\n\n|\n(?=- |\d\. |\|)", prose(page)):
        if not paragraph.startswith("|") and " · " not in paragraph:
            assert len(paragraph.split()) <= MOST_WORDS, paragraph


@pytest.mark.parametrize("page", CHECKED, ids=name_of)
def test_lines_end_at_the_margin(page):
    long = [line for line in prose(page).splitlines() if len(line) > 120]
    assert [line for line in long if not line.startswith(("|", "![")) and "](" not in line] == []
