"""What a captured graph was compiled to, remembered between processes: facts as JSON, programs by their keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.cache.disk import Cache, decoded, is_key, key_of, open_cache
from bothways.cache.keys import captured_key
from bothways.cache.spelling import NotSpelled
from bothways.errors import NoCompiler
from bothways.lower.host.dialect import Dialect
from bothways.lower.host.recall import recall
from bothways.lower.host.text import FACTS


@dataclass(frozen=True)
class Memo:
    """One thing to remember, in one cache. ``part`` gives the memo of something that belongs to it."""

    cache: Cache
    key: str
    dialect: Dialect

    def part(self, *names: str) -> Memo:
        return Memo(self.cache, key_of(self.key, *names), self.dialect)

    def recall(self) -> Any:
        """The facts that were noted; None when there are none."""
        files = self.cache.read(self.key)
        if files is None:
            return None
        try:
            facts = json.loads(decoded(files[FACTS]))
        except (KeyError, ValueError, RecursionError):  # no facts
            facts = None
        if type(facts) is dict:
            return facts
        self.forget()
        return None

    def forget(self) -> None:
        """Take away what was noted, since it is wrong."""
        self.cache.drop(self.key)

    def note(self, facts: Any) -> None:
        self.cache.keep(self.key, {FACTS: json.dumps(facts)})

    def program(self, key: str, takes: int, gives: int) -> Callable[..., Any] | None:
        """A compiled program of so many inputs and results, by the key it had when it was compiled."""
        return recall(self.cache, key, takes, gives, self.dialect) if is_key(key) else None


def memo_of(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], expected: Sequence[Any], *, dialect: Dialect
) -> Memo | None:
    """The memo of a captured graph; None when the cache is off, or the graph does what only this process knows."""
    cache = open_cache()
    if cache is None:
        return None
    try:
        tools = dialect.tools(cache)
        return None if tools is None else Memo(cache, captured_key(graph, inputs, expected, tools), dialect)
    except (NotSpelled, NoCompiler):
        return None
