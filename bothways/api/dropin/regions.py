"""Names of ``torch.compiler`` that say something about functions and caches, with PyTorch's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bothways.api.dropin.facades import theirs
from bothways.cache import portable
from bothways.cache.portable import NotLoaded, Shipment
from bothways.capture.standins import STANDINS

COMPILER = "torch.compiler"


def nested_compile_region(fn: Any = None, **options: Any) -> Any:
    """``torch.compiler.nested_compile_region``: the function itself. Ours inlines calls, and shares what it can."""
    return nested_compile_region if fn is None else fn


def nonstrict_trace(traceable_fn: Any) -> Any:
    """``torch.compiler.nonstrict_trace``: the function itself. Ours looks into it, and breaks where it has to."""
    if not callable(traceable_fn):
        raise AssertionError("nonstrict_trace expects a callable")
    return traceable_fn


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``torch.compiler.substitute_in_graph``: capture follows the Python that is given for a function in C."""
    settings = {
        "can_constant_fold_through": can_constant_fold_through,
        "skip_signature_check": skip_signature_check,
    }

    def substitute(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
        # PyTorch checks both, and knows it for its own captures.
        wrapped: Callable[..., Any] = theirs("substitute_in_graph", COMPILER)(original_fn, **settings)(traceable_fn)
        STANDINS[original_fn] = traceable_fn
        return wrapped

    return substitute


def save_cache_artifacts() -> tuple[bytes, Shipment] | None:
    """``torch.compiler.save_cache_artifacts``: what our cache holds; None where that is nothing."""
    content, count = portable.packed()
    return (content, Shipment("(bytes)", count, bytes=len(content))) if count else None


def load_cache_artifacts(serialized_artifacts: bytes) -> Any:
    """``torch.compiler.load_cache_artifacts``: into our cache; what PyTorch has saved is for PyTorch."""
    try:
        return portable.unpacked(serialized_artifacts)
    except NotLoaded:
        return theirs("load_cache_artifacts", COMPILER)(serialized_artifacts)
