"""What a capture assumes about the user's classes: the attributes it found, and those it did not find.

A class may get an attribute later, and a function may get other code: both change what the same objects do.
Library classes are stamped whole, and of a user's what it says, or does not say, about names that instances have
(``capture/writing/definitions.py``).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Attr
from bothways.source_text import is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def guard_class_attribute(tracer: Tracer, cls: type, name: str, attribute: Any) -> None:
    """Assume that a user class still has this attribute; a library's is stamped as a whole."""
    tracer.definitions.meet(cls, name)
    if policy.is_library_module(cls.__module__):
        return
    source = tracer.inject(cls, cls.__qualname__)
    if not is_plain_name(name):
        if isinstance(attribute, (classmethod, staticmethod, types.FunctionType, property)):
            read = Attr(source, name)
            function = Attr(read, "__func__") if isinstance(attribute, classmethod) else read
            tracer.guard("{s0} is {c0}", function, getattr(attribute, "__func__", attribute))
    elif isinstance(attribute, classmethod) and not isinstance(attribute.__func__, property):  # which reading calls
        tracer.guard(f"{{s0}}.{name}.__func__ is {{c0}}", source, attribute.__func__)
    elif isinstance(attribute, staticmethod):
        tracer.guard(f"{{s0}}.{name} is {{c0}}", source, attribute.__func__)
    elif isinstance(attribute, (types.FunctionType, property)):
        tracer.guard(f"{{s0}}.{name} is {{c0}}", source, attribute)
    body = attribute.fget if isinstance(attribute, property) else getattr(attribute, "__func__", attribute)
    if isinstance(body, types.FunctionType):
        tracer.definitions.body(body)


def guard_class_says(tracer: Tracer, cls: type, *names: str) -> None:
    """Assume that a user class says about these names what it says now, be it nothing.

    An attribute of the instance's own is read, or written, as long as no descriptor of the class comes before it.
    """
    for base in cls.__mro__:
        if not policy.is_library_module(base.__module__):
            for name in names:
                tracer.definitions.class_name(base, name)


def guard_class_lacks(tracer: Tracer, cls: type) -> None:
    """Assume that nothing was added to the class, because something was looked for in it and not found."""
    tracer.definitions.meet(cls)
    for base in cls.__mro__:
        if not policy.is_library_module(base.__module__):
            # One cheap check for every name that was not found: an attribute that is added makes the class longer.
            tracer.guard("len({s0}.__dict__) == {c0}", tracer.inject(base, base.__qualname__), len(base.__dict__))
