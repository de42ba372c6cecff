"""PyTorch's settings and contexts."""
