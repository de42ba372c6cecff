"""What C and CUDA C++ have in common: how operations are written, and the helpers that are the same in both."""
