"""PyTorch's samples of operations, one compiled function for all samples of one, with every size a symbol.

Sizes of a sample that the program of an earlier one takes are sizes that program was not made from.
"""

import warnings

import pytest
import torch
from op_samples import first_samples, op_db
from torch.utils._pytree import tree_leaves, tree_map

import bothways

NAMES = (
    "add sub mul div true_divide floor_divide remainder pow maximum where clamp lerp addcmul addcdiv "
    "exp tanh sigmoid sum mean prod amax argmax var std cumsum logsumexp softmax log_softmax norm "
    "mm bmm matmul addmm einsum baddbmm "
    "view reshape expand permute transpose unsqueeze squeeze flatten narrow select split chunk unbind diagonal unfold "
    "cat stack repeat tile flip roll rot90 tril triu index_select gather scatter_add index_add masked_fill "
    "nn.functional.layer_norm nn.functional.group_norm nn.functional.batch_norm nn.functional.conv1d "
    "nn.functional.conv2d nn.functional.avg_pool2d nn.functional.max_pool2d nn.functional.cross_entropy "
    "nn.functional.mse_loss nn.functional.embedding nn.functional.linear nn.functional.gelu nn.functional.pad "
    "nn.functional.scaled_dot_product_attention nn.functional.interpolate zeros_like full_like new_zeros __getitem__"
).split()
OPERATIONS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if op.name in NAMES}
FEW_SAMPLES, MOST_SAMPLES = 2, 6


def copied(value):
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("most", [FEW_SAMPLES, pytest.param(MOST_SAMPLES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_program_serves_samples_of_other_sizes(name, most, backend):
    operation = OPERATIONS[name]

    def program(first, args, kwargs):
        return operation.op(first, *args, **kwargs)

    compiled = bothways.compile(program, backend=backend, dynamic=True)
    with warnings.catch_warnings(), bothways.config.patch(recompile_limit=64):
        warnings.simplefilter("ignore")
        options = {"requires_grad": operation.supports_autograd, "device": torch.empty(0).device.type}
        for sample in first_samples(operation, torch.float32, most, **options):
            one, other = (tree_map(copied, (sample.input, sample.args, sample.kwargs)) for _ in range(2))
            expected, found = tensors(program(*one)), tensors(compiled(*other))
            torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
            for results in (expected, found):
                moving = [result.sum() for result in results if result.requires_grad]
                if moving:
                    torch.autograd.backward(moving)
            for wanted, got in zip(tensors(one), tensors(other), strict=True):
                torch.testing.assert_close(got.grad, wanted.grad, equal_nan=True, rtol=1e-3, atol=1e-3)
