"""Kernels as plain Python loops over single numbers: slow and obvious, what other dialects are compared with."""
