"""PyTorch's exceptions, configuration and counters, tied to ours: a module comes in, changes come out.

While they hold, ``except torch._dynamo.exc.Unsupported`` sees our errors, a flag set on
``torch._dynamo.config`` reaches ``bothways.config``, and ``torch._dynamo.utils.counters`` has what we count.
No object of PyTorch is replaced, so names imported before stay good; nothing is changed here, only described.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from bothways import errors
from bothways.api.dropin.changes import Change
from bothways.api.dropin.names import CONFIG, ERRORS
from bothways.config import config
from bothways.grad.tracing.trace import WrappedCall
from bothways.record.counters import counters


def adopt_errors(exc: ModuleType) -> Iterator[Change]:
    """Give each of our errors PyTorch's classes of the same meaning as further bases.

    Python matches ``except`` clauses by real inheritance only, so a virtual subclass would not do; and
    exchanging the classes in PyTorch's module would take them from its own compiler, which ``torch.export``
    still uses.
    """
    for name, their_names in ERRORS.items():
        ours: type = getattr(errors, name)
        theirs = tuple(_quiet(getattr(exc, their)) for their in their_names if hasattr(exc, their))
        root, *built_in = ours.__bases__
        # Theirs are RuntimeErrors, and a class must come before the classes it is derived from.
        yield Change(ours, "__bases__", (root, *theirs, *built_in))


def _quiet(theirs: type[Exception]) -> type[Exception]:
    """A subclass of ``theirs`` without its constructor and pickling, which expect arguments of their own."""
    body: dict[str, Any] = {
        "__init__": lambda self, *args: Exception.__init__(self, *args),
        "__reduce__": Exception.__reduce__,
        "__doc__": f"What makes an error of bothways a {theirs.__module__}.{theirs.__qualname__} as well.",
        # What handlers written for PyTorch read from the instances.
        "msg": property(str),
        "inner_exception": property(lambda self: self.__cause__),
    }
    return type(theirs.__name__, (theirs,), body)


def mirror_config(module: ModuleType) -> Iterator[Change]:
    """Have the configuration module pass on the flags of ``CONFIG``; its ``patch`` and checks go on."""
    base: Any = type(module)

    class MirroredConfig(base):
        def __getattr__(self, name: str) -> Any:
            theirs = super().__getattr__(name)  # asked first: it says whether the flag is there at all
            return getattr(config, CONFIG[name]) if name in CONFIG else theirs

        def __setattr__(self, name: str, value: Any) -> None:
            if name in CONFIG:
                setattr(config, CONFIG[name], value)
            super().__setattr__(name, value)

    yield Change(module, "__class__", MirroredConfig)


def share_counters(utils: ModuleType) -> Iterator[Change]:
    """Count into PyTorch's own counters."""
    yield Change(counters, "groups", utils.counters)


def name_wrapped_calls(module: ModuleType) -> Iterator[Change]:
    """Have traced graphs call a wrapped call what PyTorch's call it."""
    yield Change(WrappedCall, "spelling", (module.__name__, "self_invoke"))
