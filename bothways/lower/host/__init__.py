"""The Python around kernels: programs, calls of ATen, and how programs are kept."""
