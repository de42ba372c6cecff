"""Whole backwards as programs: what the autograd engine would run, written down, compiled and run in its place."""
