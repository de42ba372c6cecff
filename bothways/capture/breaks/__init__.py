"""Where a capture ends before the function does, and what is done there."""
