"""How the results of convolutions lie on a GPU, where no GPU is there: cuDNN has channels last where an operand has."""

import pytest
import torch

from bothways.fake import NotThin, answer, thin_outline

GPU = torch.device("cuda", 0)
aten = torch.ops.aten
LAST = {"images": (3 * 64, 1, 8 * 3, 3), "contiguous": (3 * 64, 64, 8, 1)}


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)


def operands(dtype=torch.float32, lies="images", groups=1):
    images = thin_outline((2, 3, 8, 8), LAST[lies], dtype, GPU)
    weight = thin_outline((6, 3 // groups, 1, 1), (3 // groups, 1, 1, 1), dtype, GPU)  # which lies in both ways
    return images, weight


def convolved(images, weight, groups=1):
    return answer(aten.convolution.default, (images, weight, None, [1], [0], [1], False, [0], groups), {})


def gradients(images, weight, grad):
    arguments = (grad, images, weight, None, [1], [0], [1], False, [0], 1, [True, True, False])
    return answer(aten.convolution_backward.default, arguments, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_kernels_of_1x1_take_images_with_channels_last(dtype):
    images, weight = operands(dtype)
    result = convolved(images, weight)
    assert result.is_contiguous(memory_format=torch.channels_last) and not result.is_contiguous()
    grad_images, grad_weight, _ = gradients(images, weight, result)
    assert grad_images.stride() == images.stride() and grad_weight.stride() == (3, 1, 3, 3)


def test_all_is_contiguous_where_both_operands_are():
    images, weight = operands(lies="contiguous")
    assert convolved(images, weight).is_contiguous()


def test_what_is_not_sure_is_not_told():
    with pytest.raises(NotThin):
        convolved(*operands(torch.float64))
    with pytest.raises(NotThin):
        convolved(*operands(groups=3), groups=3)
    with torch.backends.cudnn.flags(enabled=False), pytest.raises(NotThin):
        convolved(*operands())


def test_windows_of_images_with_channels_last():
    images, _ = operands()
    for operation in (aten.max_pool2d_with_indices.default, aten.avg_pool2d.default):
        result = answer(operation, (images, [2]), {})
        for one in result if isinstance(result, (tuple, list)) else [result]:
            assert one.stride() == (48, 1, 12, 3)
    pooled, indices = answer(aten.max_pool2d_with_indices.default, (images, [2]), {})
    arguments = (pooled, images, [2], [2], [0], [1], False, indices)
    assert answer(aten.max_pool2d_with_indices_backward.default, arguments, {}).stride() == images.stride()
    with pytest.raises(NotThin):
        answer(aten._adaptive_avg_pool2d.default, (images, [2, 2]), {})
