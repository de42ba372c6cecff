"""Compiled graphs on a GPU as CUDA graphs: recorded when a call repeats, and replayed by one launch from then on.

Comes in: the function that a backend has compiled a graph to. Goes out: a function that does the same, with tensors
that only their holders write to.
"""
