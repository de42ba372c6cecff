"""What every value is, constants and numbers, and the operations of the language on them."""
