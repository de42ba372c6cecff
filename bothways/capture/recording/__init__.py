"""The graph that is being recorded."""
