"""Function modes and tensor classes that see what is called."""
