"""What operations return, told from sizes, dtypes and symbols, without data."""
