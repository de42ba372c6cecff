"""``bothways.autograd``: whole backwards as programs."""

from bothways.api.compile import compile
from bothways.backward.capturing import capture
from bothways.backward.engine import default_compiler

__all__ = ["capture"]

default_compiler[:] = [compile]
