"""Generators, coroutines and what is suspended inside of them."""
