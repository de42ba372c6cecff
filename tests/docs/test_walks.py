"""The walks of docs/how-to, walked: what each page says to add is added to a copy of the package, and its tests run."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from walks import changes_of

import bothways

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
MOST_FILES = {"builtin": 3, "torch-function": 3, "lowering": 3, "break-reason": 3}
# Tests of ours that have to do with what a walk changes.
BREAKS, OPERATIONS = "tests/api/test_breaks_documented.py", "tests/package/test_operations.py"
OURS = [
    f"{OPERATIONS}::test_what_is_lowered_has_a_shape_rule_or_a_reason",
    f"{BREAKS}::test_every_code_has_a_section_and_no_section_is_left_over",
    f"{BREAKS}::test_the_example_breaks_for_that_reason[file]",
    f"{BREAKS}::test_the_fix_does_not_break[file]",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_walk_touches_few_files_and_names_each(page):
    text = page.read_text()
    files = {change.path for change in changes_of(text)}
    assert files and len(files) <= MOST_FILES.get(page.stem, 4)
    assert "**Files to touch:" in text


NOW = re.compile(r"^## 1. See what happens now\n\n```python\n(.*?)^# (.*?)\n```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if NOW.search(page.read_text())], ids=lambda page: page.stem)
def test_what_happens_now_is_what_the_page_says(page, capsys):
    [(program, said)] = NOW.findall(page.read_text())
    with bothways.config.patch(kernels_for_small_graphs=False):
        exec(program, {})
    assert capsys.readouterr().out.splitlines()[0] == said


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A copy of the repository in which all walks were walked, and the files they touched."""
    root = tmp_path_factory.mktemp("walked")
    for folder in ("bothways", "docs"):
        shutil.copytree(ROOT / folder, root / folder)  # with the bytecode: to compile all of it takes seconds
    for path in (BREAKS, OPERATIONS, "tests/package_sources.py", "pyproject.toml"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    changes = [change for page in PAGES for change in changes_of(page.read_text())]
    for change in changes:
        change.make(root)
    return root, sorted({change.path for change in changes if change.path.endswith(".py")})


def run(root, *command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))}
    command = [sys.executable, "-m", *command]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


@pytest.mark.timeout(600)
def test_every_walk_arrives(walked):
    root, files = walked
    run(root, "pytest", "-q", "-p", "no:cacheprovider", *(path for path in files if "/test_" in path), *OURS)


def test_what_the_walks_say_to_write_is_written_as_we_write(walked):
    pytest.importorskip("ruff")
    root, files = walked
    run(root, "ruff", "check", "--no-cache", *files)
