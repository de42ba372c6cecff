"""From a captured graph to its forward and backward graphs, and the autograd node that joins them."""

from bothways.grad.differentiate import DifferentiatedGraph, differentiate
from bothways.grad.tracing.trace import trace_wrapped

__all__ = ["DifferentiatedGraph", "differentiate", "trace_wrapped"]
