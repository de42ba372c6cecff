"""What a program assumes: where objects come from, the guards on them, and which library code is a fact."""
