"""Word of imports: module names and a function come in; the function is called once each is imported.

It lets the drop-in change modules of PyTorch that are loaded late or never, without loading them itself
(``torch._dynamo`` takes longer to import than most functions to compile). Modules are found, loaded and
described by the finder that would have done so otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Calls ``then(module)`` right after one of ``names`` has been imported, before its importer goes on."""

    def __init__(self, names: Sequence[str], then: Callable[[ModuleType], None]) -> None:
        self._names, self._then = frozenset(names), then

    @property
    def running(self) -> bool:
        """Whether imports are being watched."""
        return self in sys.meta_path

    def start(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer; not watching is fine too."""
        if self.running:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with our function behind the loader's work."""
        if fullname not in self._names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # ours, on this instance: from here on the loader is as it was
            loader.exec_module(module)
            if self.running:
                self._then(module)

        # Set on the instance, which belongs to this one import, so that the module keeps its own loader.
        loader.exec_module = exec_module
