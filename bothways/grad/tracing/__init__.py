"""A captured graph, run once on thin tensors with autograd: the joint graph of forward and backward comes out."""
