"""``torch.backends.cuda.SDPAParams``: what a call of attention is about, kept by C++; its fields are the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.guards.sources import Attr, Source
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.handlers import handles

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


class AttentionParams(Value):
    """The parameters, made by a node of the graph or from outside."""

    def __init__(
        self, fields: dict[str, Value], node: torch.fx.Node | None = None, source: Source | None = None
    ) -> None:
        self.fields, self.node, self.source = fields, node, source

    @classmethod
    def external(cls, tracer: Tracer, obj: Any, source: Source) -> AttentionParams:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        value = cls({name: tracer.wrap(getattr(obj, name), Attr(source, name)) for name in FIELDS}, source=source)
        tracer.remember(obj, value)
        return value

    def python_type(self) -> type:
        return torch_compat.SDPAParams

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self.fields[name] if name in self.fields else super().get_attr(tracer, name)

    def name_hint(self) -> str:
        return "params"

    def rebuild(self, emitter: Emitter) -> str:
        assert self.node is not None
        return emitter.result(self.node)


@handles(torch_compat.SDPAParams)
def _make(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if kwargs or len(args) != len(FIELDS):
        tracer.stop("call_unknown", "SDPAParams is made with other arguments than it has fields")
    node = tracer.graph.node_of(torch_compat.SDPAParams, args)
    return AttentionParams(dict(zip(FIELDS, args, strict=True)), node)
