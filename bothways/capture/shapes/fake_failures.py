"""What it means that an operation failed on fakes: it needs data, no fake kernel runs it, or it refuses its arguments.

The first two are breaks at the operation. The last is the user's own error, so that the call runs as plain Python.
"""

from __future__ import annotations

import re

from bothways.capture.shapes.fakes import SpecialLayout
from bothways.fake import NeedsData
from bothways.torch_compat.said import known_as, said

# What PyTorch's fake tensors raise, by name: the module that has the classes takes a second to load.
NEEDS_DATA = frozenset({"DataDependentOutputException", "DynamicOutputShapeException"})
NO_KERNEL = frozenset({"UnsupportedOperatorException", "UnsupportedFakeTensorException", "NotImplementedError"})
# What the errors say that kernels raise which were given a tensor without data, or that were never written.
SAID_WITHOUT_DATA = re.compile(
    r"\bmeta\b|no fake impl|fake ?tensor|data is not allocated|data pointer|have storage", re.IGNORECASE
)


def meaning_of(name: str, error: Exception) -> tuple[str, str]:
    """The code and the reason of the break that a failure is."""
    name, text = known_as(name), said(error)
    if isinstance(error, SpecialLayout):
        return "tensor_subclass", f"{name} gives a tensor of a special layout"
    if needs_data(error):
        return "dynamic_shape", f"{name} needs the data of its arguments: {text}"
    if _is_about_fakes(error):
        return "op_unknown", f"what {name} returns is not known without running it: {text}"
    return "op_failed", f"the shapes of {name} cannot be worked out: {text}"


def needs_data(error: Exception) -> bool:
    """Whether an operation failed because it looks at what tensors hold."""
    return isinstance(error, NeedsData) or type(error).__name__ in NEEDS_DATA


def _is_about_fakes(error: Exception) -> bool:
    named = any(kind.__name__ in NO_KERNEL for kind in type(error).__mro__)
    return named or SAID_WITHOUT_DATA.search(str(error)) is not None
