"""From graphs of ATen operations to kernels: decompose, fuse, emit C, build, and the Python that calls them."""

from bothways.lower.builder import NotLowered
from bothways.lower.program import compile_graph

__all__ = ["NotLowered", "compile_graph"]
