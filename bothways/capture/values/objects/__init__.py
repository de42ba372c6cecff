"""Objects of user classes, exceptions, and the functions and types of builtins."""
