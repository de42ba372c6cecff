"""Hooks on tensors, saved tensors, and the functions autograd remembers."""
