"""What is written down of compilations, for people: what happened, how each graph runs, what was generated."""
