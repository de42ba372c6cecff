"""Which primitive nodes are computed together, by which loops, and in which memory."""
