"""From graphs of ATen operations to kernels: decompose, fuse, emit C, build, and the Python that calls them."""

from bothways.lower.host.program import compile_graph
from bothways.lower.ir.builder import NotLowered

__all__ = ["NotLowered", "compile_graph"]
