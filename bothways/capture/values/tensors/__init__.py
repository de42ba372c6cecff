"""Tensors, torch functions, and numbers and sizes that depend on data."""
