"""Kernels in C, with vectors and threads by OpenMP."""
