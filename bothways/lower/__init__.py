"""From graphs of ATen operations to kernels: decompose, fuse, schedule, spell, and the Python around them."""

from bothways.lower.host.program import compile_graph
from bothways.lower.ir.builder import NotLowered

__all__ = ["NotLowered", "compile_graph"]
