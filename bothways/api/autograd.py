"""``bothways.autograd``: whole backwards as programs."""

from bothways.backward.capturing import capture

__all__ = ["capture"]
