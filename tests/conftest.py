"""What every test run needs: kernels cached in a folder of its own, and a PyTorch that is awake."""

import os
import tempfile

# Set before bothways is imported, for the processes that tests start as well.
_folder = tempfile.TemporaryDirectory(prefix="bothways-tests-")
os.environ.setdefault("BOTHWAYS_CACHE_DIR", _folder.name)

import torch  # noqa: E402

import bothways  # noqa: E402

# Tests are small; kernels are what most of them are about.
bothways.config.kernels_for_small_graphs = True

# The first time several threads enter MKL's vector functions at once, some compute with low accuracy.
torch.exp(torch.ones(16))
