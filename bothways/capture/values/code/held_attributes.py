"""Attributes that objects keep for themselves, in a ``__dict__`` or in slots: stored, deleted, and stored again.

Whether the program has to delete one depends on whether it was there before the call, which is assumed. What is
deleted and stored again comes last, as in any dictionary.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bothways.capture.guards.sources import Source
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Classes whose ``__setattr__`` in C is that of ``object``.
_STORING_PLAINLY = (object, BaseException, types.SimpleNamespace)

_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)

# What is assumed, by whether the attribute is a slot, and whether it is there.
_GUARDS = {
    (False, True): "{c0} in {s0}.__dict__",
    (False, False): "{c0} not in {s0}.__dict__",
    (True, True): "hasattr({s0}, {c0})",
    (True, False): "not hasattr({s0}, {c0})",
}


class Holder(Protocol):
    """A Value of something with attributes of its own."""

    source: Source | None
    attrs: dict[str, Value | None]  # None stands for a deleted attribute
    moved: set[str]  # attributes that were deleted and stored again

    def python_type(self) -> type:
        """The class of the object."""

    def instance_dict(self) -> Mapping[str, Any]:
        """What the object from outside has in its ``__dict__``."""

    def note_change(self, tracer: Tracer) -> None:
        """The object is not as it was."""


def keep_attribute(tracer: Tracer, owner: Holder, name: str, value: Value | None) -> None:
    """Keep what an attribute is from now on; None deletes it."""
    if value is None:
        guard_held(tracer, owner, name)
    elif owner.attrs.get(name, value) is None:
        del owner.attrs[name]
        owner.moved.add(name)
    owner.attrs[name] = value
    owner.note_change(tracer)


def guard_held(tracer: Tracer, owner: Holder, name: str) -> None:
    """Assume that an object from outside had an attribute before the call, or that it had not."""
    if owner.source is None:
        return
    tracer.guard(_GUARDS[_is_field(owner, name), was_held(owner, name)], owner.source, name)


def was_held(owner: Holder, name: str) -> bool:
    """Whether an object from outside had an attribute of its own before the call."""
    return name in owner.instance_dict() or (_is_field(owner, name) and hasattr(getattr(owner, "obj", None), name))


def stores_otherwise(cls: type) -> bool:
    """Whether a class written in C stores attributes in a way of its own, as in one dictionary for each thread."""
    return getattr(linked.lookup_attribute(cls, "__setattr__"), "__objclass__", object) not in _STORING_PLAINLY


def _is_field(owner: Holder, name: str) -> bool:
    return isinstance(linked.lookup_attribute(owner.python_type(), name), _FIELDS)
