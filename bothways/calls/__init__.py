"""The C around calls of compiled functions: one library that checks guards and enters kernels."""
