"""Kernels that look like Triton's to a compiler and run on the CPU, so that launches are tested without a GPU.

A launch takes its tensors by address, as Triton does, and fails where there is none.
"""

import ctypes
import sys
import types

import torch

MODULE = "triton.made_for_tests"


class JITFunction:
    """``kernel[grid](...)``: the function gets arrays of floats in the place of tensors."""

    def __init__(self, function):
        self.function, self.__name__, self.__module__ = function, function.__name__, function.__module__
        self.arg_names = list(function.__code__.co_varnames[: function.__code__.co_argcount])
        self.launches = 0

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            self.launches += 1
            return self.function(*map(memory_of, args), **kwargs)

        return launch


JITFunction.__module__ = MODULE
sys.modules.setdefault(MODULE, types.ModuleType(MODULE)).JITFunction = JITFunction


def memory_of(value):
    """The floats of a tensor, found by their address alone."""
    if not isinstance(value, torch.Tensor):
        return value
    address = value.data_ptr()
    assert address, "a kernel was launched on a tensor without memory: on a GPU that is an illegal access"
    assert value.dtype is torch.float32 and value.is_contiguous()
    return (ctypes.c_float * value.numel()).from_address(address)


def jit(function):
    return JITFunction(function)
