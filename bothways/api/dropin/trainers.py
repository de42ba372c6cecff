"""Names of backends in libraries that keep a list of their own: ours is one of them while the drop-in is there."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType, ModuleType
from typing import Any

from bothways.api.dropin.changes import Change


def name_backend(module: ModuleType) -> Iterator[Change]:
    """accelerate's ``DynamoBackend`` takes ``"bothways"``, and with it transformers' ``torch_compile_backend``."""
    kind: Any = getattr(module, "DynamoBackend", None)
    if kind is None:
        return
    before = kind._missing_

    def missing(cls: Any, value: Any) -> Any:
        if value != "BOTHWAYS":
            return before(value)
        member = str.__new__(cls, value)
        member._name_, member._value_ = value, value
        return member

    yield Change(kind, "_missing_", MethodType(missing, kind))
