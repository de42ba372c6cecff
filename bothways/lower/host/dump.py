"""``BOTHWAYS_DUMP=folder``: writes the kernels of each graph and the Python around them where people can read them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bothways.cache.spelling import SCOPE, NotSpelled, spelled
from bothways.errors import NoCompiler, warn_once
from bothways.lower.host.dialect import Dialect
from bothways.source_text import in_comment, printable, writable

DUMP_VARIABLE = "BOTHWAYS_DUMP"


def dump(name: str, kernels: str, python: str, namespace: Mapping[str, Any], dialect: Dialect) -> None:
    """Write ``001_forward.py``, and the kernels beside it, with the next free number, when people asked for it."""
    folder = os.environ.get(DUMP_VARIABLE)
    if not folder:
        return
    try:
        _write(Path(folder), name, kernels, python, namespace, dialect)
    except (OSError, NoCompiler) as error:  # what people wanted to read is missing, what they wanted to run is not
        warn_once(f"{DUMP_VARIABLE} is ignored: {printable(str(error))}")


def _write(
    folder: Path, name: str, kernels: str, python: str, namespace: Mapping[str, Any], dialect: Dialect
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    python_file = _next_file(folder, name)
    kernel_file = python_file.with_suffix(dialect.suffix)
    used = set(re.findall(r"[A-Za-z_]\w*", python))
    header = [_definition(label, value) for label, value in namespace.items() if label in used]
    if kernels:
        kernel_file.write_text(writable(dialect.whole(kernels)), encoding="utf-8")
        header.append(f"# Functions named run_... are in {in_comment(kernel_file.name)}.")
    roots = [root for root in SCOPE if root != "torch" and any(f" = {root}." in line for line in header)]
    imports = [f"import {root}" for root in ("torch", *roots)]
    python_file.write_text(writable("\n".join([*imports, "", *header, "", "", python])), encoding="utf-8")


def _next_file(folder: Path, name: str) -> Path:
    """A new file; other processes may be numbering theirs in the same folder."""
    taken = [int(path.name[:3]) for path in folder.glob("[0-9][0-9][0-9]_*.py")]
    number = max(taken, default=0)
    while True:
        number += 1
        path = folder / f"{number:03}_{name}.py"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path


def _definition(label: str, value: Any) -> str:
    """Where a name of the program comes from, in Python where Python has a word for it."""
    if isinstance(value, torch.Tensor):
        return f"# {label}: a tensor of {value.dtype}, shape {tuple(value.shape)}, strides {value.stride()}"
    try:
        return f"{label} = {spelled(value)}"
    except NotSpelled:
        return f"# {label}: {in_comment(_described(value))}"


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # that of a user's class
        return f"a {type(value).__name__}"
