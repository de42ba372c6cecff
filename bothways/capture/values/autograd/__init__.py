"""Custom autograd functions, and the order autograd runs them in."""
