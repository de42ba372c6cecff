"""What decides about calls that no program takes: capture them, run them plainly, or stop capturing."""
