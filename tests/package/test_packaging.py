"""A wheel of the package works by itself: without the repository, found by PyTorch, typed, with its extras."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bothways

ROOT = Path(__file__).parent.parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]

# What a user does who has installed it and nothing else.
PROGRAM = """
import torch, bothways
assert bothways.__file__.startswith({target!r}), bothways.__file__
assert "bothways" in torch.compiler.list_backends(exclude_tags=None)
model = torch.nn.Linear(4, 4)
compiled = torch.compile(model, backend="bothways")
compiled(torch.ones(2, 4)).sum().backward()
assert model.weight.grad is not None
assert not any(name.startswith("_orig_mod") for name in bothways.compile(model).state_dict())
print(bothways.doctor())
"""


def test_the_version_is_one_and_semantic():
    assert bothways.__version__ == PROJECT["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", PROJECT["version"])


def test_the_extras_are_those_that_the_words_name():
    assert {"report", "cuda", "docs", "dev"} <= set(PROJECT["optional-dependencies"])
    assert PROJECT["dependencies"] == ["torch>=2.11"]


def test_every_folder_of_the_package_is_in_the_wheel():
    """A folder without an ``__init__`` is easily left out."""
    found = {path.parent for path in (ROOT / "bothways").rglob("*.py")}
    assert [str(path) for path in found if not (path / "__init__.py").exists()] == []
    assert (ROOT / "bothways" / "py.typed").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_works_without_the_repository(tmp_path):
    if importlib.util.find_spec("build") is None:
        pytest.skip("pip install build")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "bothways", source / "bothways", ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)], tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert list((tmp_path / "dist").glob("*.tar.gz"))
    target = tmp_path / "installed"
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)], tmp_path)
    assert (target / "bothways" / "py.typed").exists()
    environment = {"PYTHONPATH": str(target), "BOTHWAYS_CACHE_DIR": str(tmp_path / "cache")}
    said = run([sys.executable, "-c", PROGRAM.format(target=str(target))], tmp_path, environment)
    assert "everything works" in said
    assert "usage: python -m bothways" in run([sys.executable, "-m", "bothways", "--help"], tmp_path, environment)


def run(command, folder, environment=None):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "", **(environment or {})}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
