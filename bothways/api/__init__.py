"""What users call: compile, explain, the decorators, and the drop-in."""
