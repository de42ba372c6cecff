"""Numbers for tests, where the tests' tensors are made: on the CPU, or with ``--tensors-on cuda`` on a GPU."""

import torch


def seeded(seed):
    return torch.Generator(torch.empty(0).device).manual_seed(seed)
