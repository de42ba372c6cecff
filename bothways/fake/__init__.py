"""Thin fake tensors: what operations return, told by tables of rules instead of kernels."""

from bothways.fake.corrected import fake_tensor_mode
from bothways.fake.mode import ThinMode, answer
from bothways.fake.numbers import holds, is_whole_for_torch
from bothways.fake.parts import of_parts
from bothways.fake.tensor import NeedsData, NotThin, SizedByData, ThinTensor, thin_like, thin_outline

__all__ = [
    "NeedsData",
    "NotThin",
    "SizedByData",
    "ThinMode",
    "ThinTensor",
    "answer",
    "fake_tensor_mode",
    "holds",
    "is_whole_for_torch",
    "of_parts",
    "thin_like",
    "thin_outline",
]
