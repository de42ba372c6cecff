"""Functions that belong to operations: written where what they need is known, registered here under the name.

Shape rules come from ``fake/rules``, by name or overload; lowerings from ``lower/ir/lowerings``, by overload; what says
that a kernel warns, or refuses numbers, from ``capture/shapes``. A record finds its own (``Operation.shape_rule``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ShapeRule = Callable[..., Any]
Lowering = Callable[..., Any]

SHAPE_RULES: dict[str, ShapeRule] = {}
LOWERINGS: dict[Any, Lowering] = {}
WARNINGS: dict[str, Callable[..., bool]] = {}
REFUSALS: dict[str, Callable[..., Exception | None]] = {}
