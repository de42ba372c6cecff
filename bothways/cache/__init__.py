"""What is kept on disk between processes: entries, who may be trusted with them, and how things are written down."""

from bothways.cache.portable import load, save

__all__ = ["load", "save"]
