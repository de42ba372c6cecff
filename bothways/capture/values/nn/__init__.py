"""Modules, their hooks, optimizer steps, and making objects of classes."""
