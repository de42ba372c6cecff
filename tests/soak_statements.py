"""A seeded generator of flat programs: many statements, each of a table, each of which leaves what it has to show.

What ``soaking.py`` nests, this puts one after the other, so that a program meets many things at once: numbers,
objects, tensors of all dtypes or gradients, by its seed.
"""

import random
import warnings

import soak_dtypes
import soak_gradients
import soak_numbers
import soak_objects
import torch

KINDS = (soak_numbers, soak_objects, soak_dtypes, soak_gradients)


def program(seed, kinds=KINDS):
    """The source of a program: ``make(call)`` gives the arguments of ``target``, ``STATE`` names what it may change."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kinds[seed % len(kinds)].program(random.Random(seed))
