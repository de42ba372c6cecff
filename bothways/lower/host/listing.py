"""The kernels of a graph and the Python around them as files that people read: every name says where it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from bothways.cache.spelling import SCOPE, NotSpelled, spelled
from bothways.lower.host.dialect import Dialect
from bothways.source_text import in_comment


def listing(stem: str, kernels: str, python: str, namespace: Mapping[str, Any], dialect: Dialect) -> dict[str, str]:
    """The texts of the files called ``stem``, by the ends of their names."""
    used = set(re.findall(r"[A-Za-z_]\w*", python))
    header = [_definition(label, value) for label, value in namespace.items() if label in used]
    files = {}
    if kernels:
        files[dialect.suffix] = dialect.whole(kernels)
        header.append(f"# Functions named run_... are in {in_comment(stem + dialect.suffix)}.")
    if re.search(r"\bnew_\d", python):
        header.append("# Functions named new_... make tensors, which are said beside their calls.")
    roots = [root for root in SCOPE if root != "torch" and any(f" = {root}." in line for line in header)]
    imports = [f"import {root}" for root in ("torch", *roots)]
    return {**files, ".py": "\n".join([*imports, "", *header, "", "", python])}


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
