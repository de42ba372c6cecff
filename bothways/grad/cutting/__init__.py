"""A captured graph cut into parts, where people outside look, or where an operation has to run as captured."""
