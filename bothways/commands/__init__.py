"""What ``python -m bothways`` can do, one row a command: ``table.py`` lists them."""
