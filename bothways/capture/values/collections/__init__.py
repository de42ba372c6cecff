"""Sequences, dicts, sets, deques and their iterators."""
