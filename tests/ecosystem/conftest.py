"""What the libraries need here: nothing is downloaded, and a torchvision built for another torch can be imported."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:
    # PyPI's torchvision is built with CUDA: beside a torch for the CPU its operators are missing, and those that it
    # registers shape rules for have to be there. timm and transformers import it and use none of them.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def nothing_captured_by_pytorch():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
