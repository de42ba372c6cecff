"""The Values: one file per kind of Python object."""
