"""From C to loaded libraries: which compiler there is, how it is called, what is kept, how libraries come and go."""
