"""Backends: what turns a captured graph into something that can be called.

A backend is any ``f(graph_module, example_inputs) -> callable``. This package holds the registry that finds
one by name and the backends that come with bothways.
"""

from bothways.backends.aot import aot
from bothways.backends.registry import (
    ALIASES,
    DEFAULT_BACKEND,
    ENTRY_POINT_GROUP,
    Backend,
    backend_name,
    call_backend,
    list_backends,
    lookup_backend,
    register_backend,
)

__all__ = [
    "ALIASES",
    "DEFAULT_BACKEND",
    "ENTRY_POINT_GROUP",
    "Backend",
    "aot",
    "backend_name",
    "call_backend",
    "list_backends",
    "lookup_backend",
    "register_backend",
]
