"""The autograd node that runs the halves, and what it does to inputs that the graph changes."""
