"""How kernels are spelled: each folder is one language. Nothing else in ``lower/`` knows of any of them."""
