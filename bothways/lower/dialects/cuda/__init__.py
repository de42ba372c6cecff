"""Kernels in CUDA C++ for NVIDIA GPUs."""
