"""The parts of a Tracer: each is changed by its own methods and by nothing else."""
