"""Functions that take functions: kernels of Triton."""
