"""What a captured graph was compiled to, remembered between processes: facts as JSON, programs by their keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from bothways.errors import NoCompiler
from bothways.lower.build import working_tools
from bothways.lower.cache import Cache, key_of, open_cache
from bothways.lower.keys import captured_key
from bothways.lower.spelling import NotSpelled
from bothways.lower.text import FACTS, recall


@dataclass(frozen=True)
class Memo:
    """One thing to remember, in one cache. ``part`` gives the memo of something that belongs to it."""

    cache: Cache
    key: str

    def part(self, *names: str) -> Memo:
        return Memo(self.cache, key_of(self.key, *names))

    def recall(self) -> Any:
        """The facts that were noted; None when there are none."""
        files = self.cache.read(self.key)
        return None if files is None else json.loads(files[FACTS])

    def note(self, facts: Any) -> None:
        self.cache.keep(self.key, {FACTS: json.dumps(facts)})

    def program(self, key: str) -> Callable[..., Any] | None:
        """A compiled program, by the key it had when it was compiled."""
        return recall(self.cache, key)


def memo_of(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], expected: Sequence[Any]) -> Memo | None:
    """The memo of a captured graph; None when the cache is off, or the graph does what only this process knows."""
    cache = open_cache()
    if cache is None:
        return None
    try:
        return Memo(cache, captured_key(graph, inputs, expected, working_tools(cache)))
    except (NotSpelled, NoCompiler):
        return None
