"""How values, effects and inputs become lines of Python."""
