"""What a hit needs, and no more: the dispatcher, programs, continuations, nodes."""
