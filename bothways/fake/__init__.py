"""Thin fake tensors: what operations return, told by tables of rules instead of kernels."""

from bothways.fake.mode import ThinMode, answer
from bothways.fake.tensor import NeedsData, NotThin, ThinTensor, thin_like, thin_outline

__all__ = ["NeedsData", "NotThin", "ThinMode", "ThinTensor", "answer", "thin_like", "thin_outline"]
