"""What graphs of ATen operations are decomposed into: primitive nodes with shapes, sizes and names."""
