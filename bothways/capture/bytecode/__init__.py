"""From a code object to instructions, and the loop that runs them on values."""
