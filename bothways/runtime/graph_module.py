"""A ``GraphModule`` whose Python is generated when it is first called or read: most graphs never are.

Generating and compiling it takes as long as capturing a graph does. Once it is there, the module is like any other.
"""

from __future__ import annotations

import copy
import re
import weakref
from typing import Any

import torch.fx

from bothways import torch_compat
from bothways.runtime.function_spelling import has_functions, spell

_THIN = re.compile(r"\bThinTensor\((.*?)\)(?=\")")
# What calls a custom function, as the code of a graph names it, and as torch.compile's graphs do.
APPLY = "bothways_runtime_captured_functions_autograd_function_apply("
THEIR_APPLY = "torch.ops.higher_order.autograd_function_apply("
# What ``recompile`` sets.
_MADE = frozenset({"_code", "_lineno_map", "_prologue_start"})


class _Forward:
    """Stands for ``forward`` until the instance's own class gets the real one."""

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None:
            return self
        module.recompile()
        return module.forward


class LazyGraphModule(torch.fx.GraphModule):
    """Generates its code late; ``recompile()``, called by others, does so at once."""

    forward: Any = _Forward()

    def recompile(self) -> Any:
        if "_waits" not in self.__dict__:  # called by the constructor
            self._waits = True
            return None
        generated = super().recompile()
        # PyTorch would keep the text for good; whoever may still show a line of it holds the code.
        code = type(self).forward.__code__
        weakref.finalize(code, torch_compat.forget_graph_text, code.co_filename).atexit = False
        return generated

    def print_readable(self, print_output: bool = True, *args: Any, **kwargs: Any) -> str:
        """The code with sizes beside it. That sizes are known from thin tensors is not shown."""
        shown: torch.fx.GraphModule = self
        if has_functions(self.graph):
            shown = torch.fx.GraphModule(self, copy.deepcopy(self.graph), type(self).__name__)
            spell(shown)
        text = torch.fx.GraphModule.print_readable(shown, False, *args, **kwargs)
        text = _THIN.sub(r"\1", text).replace(APPLY, THEIR_APPLY)
        if print_output:
            print(text)
        return text

    def __reduce__(self) -> Any:
        self.recompile()
        return super().__reduce__()

    def __getattr__(self, name: str) -> Any:
        if name in _MADE:
            self.recompile()
            return self.__dict__[name]
        return super().__getattr__(name)


def graph_module(graph: torch.fx.Graph, root: torch.nn.Module | None = None) -> torch.fx.GraphModule:
    """A module that runs ``graph``, whose constants are attributes of ``root``."""
    return LazyGraphModule(root or torch.nn.Module(), graph)
