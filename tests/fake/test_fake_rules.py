"""The rules of thin tensors tell what PyTorch does: sizes, strides, offset, dtype, device and shared memory.

PyTorch's own samples of every operation run, forward and backward, under a mode that asks the rules about each ATen
operation on the way, with the arguments as they are and laid out and typed in a dozen other ways.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from fake_checking import Checking, tensor_list
from op_samples import first_samples, op_db

# What takes long and is made of operations that others have as well.
SKIPPED = tuple("linalg. fft. svd pca_lowrank ormqr special. signal. masked. sparse. lu cholesky jiterator".split())

OPERATIONS = {operation.formatted_name: operation for operation in op_db}


def run_samples(operation, mode, count, dtypes=(torch.float32, torch.int64, torch.bool)):
    dtype = next(dtype for dtype in dtypes if dtype in operation.dtypes)
    differentiable = (dtype.is_floating_point or dtype.is_complex) and operation.supports_autograd
    for sample in first_samples(operation, dtype, count, requires_grad=differentiable):
        run_both_ways(operation, (sample.input, *sample.args), sample.kwargs, mode)


def run_both_ways(function, args, kwargs, mode):
    sources = [tensor for tensor in tensor_list((args, kwargs)) if tensor.requires_grad]
    with mode:
        results = [tensor for tensor in tensor_list(function(*args, **kwargs)) if tensor.requires_grad]
        if results and sources:
            torch.autograd.grad(results, sources, [torch.ones_like(one) for one in results], allow_unused=True)


def check(name, count, variants):
    mode = Checking(variants, seed=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run_samples(OPERATIONS[name], mode, count)
        except (RuntimeError, NotImplementedError, StopIteration, AssertionError) as error:
            if not mode.answered:
                print(f"the sample of {name} does not run: {error}")
    assert mode.wrong == []


def named(skipped):
    return [name for name, operation in OPERATIONS.items() if operation.name.startswith(SKIPPED) == skipped]


@pytest.mark.parametrize("part", range(8))
def test_rules_agree_with_pytorch(part):
    for name in named(skipped=False)[part::8]:
        check(name, 1, variants=3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_rules_agree_on_complex_numbers(dtype):
    mode = Checking(variants=0)
    arithmetic = "add sub rsub mul div_no_rounding_mode neg sum cat stack where masked_fill"
    for name in f"{arithmetic} polar view_as_real conj resolve_conj".split():
        run_samples(OPERATIONS[name], mode, 8, (dtype, torch.float32))
    assert mode.wrong == []
    assert sum(mode.answered.values()) > 200


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_rules_agree_with_pytorch_on_many_samples(name):
    check(name, 20, variants=100)


def test_most_of_what_programs_do_is_answered():
    mode = Checking(variants=0)
    for name in "add nn_functional_linear nn_functional_layer_norm nn_functional_conv2d softmax sum cat".split():
        run_samples(OPERATIONS[name], mode, 10)
    assert sum(mode.declined.values()) < 0.05 * sum(mode.answered.values())


# What the samples do not have ------------------------------------------------------------------------------


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def image(*shape):
    return torch.randn(*shape).to(memory_format=torch.channels_last).requires_grad_()


def batch_norm(x, training):
    channels = x.shape[1]
    running = (torch.zeros(channels), torch.ones(channels))
    return F.batch_norm(x, *running, leaf(channels), leaf(channels), training, 0.1, 1e-5)


PROGRAMS = {
    "convolution": lambda: F.conv2d(leaf(2, 4, 9, 9), leaf(6, 4, 3, 3), leaf(6), padding=1),
    "convolution of 64 channels": lambda: F.conv2d(leaf(16, 64, 20, 20), leaf(32, 64, 3, 3)),
    "convolution, channels last": lambda: F.conv2d(image(2, 4, 9, 9), image(6, 4, 3, 3), leaf(6), stride=2),
    "convolution, one channel last": lambda: F.conv2d(image(2, 1, 9, 9), leaf(6, 1, 3, 3)),
    "convolution, weights last": lambda: F.conv2d(leaf(2, 4, 9, 9), image(8, 2, 3, 3), groups=2, dilation=2),
    "convolution, 1x1 of one": lambda: F.conv2d(image(1, 4, 1, 1), leaf(6, 4, 1, 1)),
    "convolution, depthwise": lambda: F.conv2d(image(2, 8, 9, 9), leaf(8, 1, 3, 3), groups=8),
    "convolution in double": lambda: F.conv2d(image(2, 4, 9, 9).double(), image(6, 4, 3, 3).double()),
    "convolution of halves": lambda: F.conv2d(leaf(2, 4, 9, 9).half(), leaf(6, 4, 3, 3).half(), leaf(6).half()),
    "convolution in bfloat16": lambda: F.conv2d(leaf(2, 4, 9, 9).bfloat16(), leaf(6, 2, 1, 1).bfloat16(), groups=2),
    "convolution of a sequence": lambda: F.conv1d(leaf(2, 9, 4).transpose(1, 2), leaf(6, 4, 3)),
    "convolution of a volume": lambda: F.conv3d(leaf(2, 3, 5, 5, 5), leaf(4, 3, 3, 3, 3)),
    "transposed convolution": lambda: F.conv_transpose2d(leaf(2, 4, 5, 5), leaf(4, 6, 3, 3), stride=2),
    "max pooling": lambda: F.max_pool2d(image(2, 4, 9, 9), 2, ceil_mode=True),
    "average pooling": lambda: F.avg_pool2d(image(2, 4, 9, 9), 3, 2, 1),
    "adaptive pooling": lambda: F.adaptive_avg_pool2d(image(2, 4, 9, 9), (3, 2)),
    "batch norm that trains": lambda: batch_norm(leaf(4, 3, 5, 5), True),
    "batch norm that trains, channels last": lambda: batch_norm(image(4, 3, 5, 5), True),
    "batch norm that infers": lambda: batch_norm(image(4, 3, 5, 5), False),
    "batch norm of rows": lambda: batch_norm(leaf(4, 3), True),
    "group norm": lambda: F.group_norm(image(2, 4, 5, 5), 2, leaf(4), leaf(4)),
    "layer norm of halves": lambda: F.layer_norm(leaf(2, 5, 8, dtype=torch.bfloat16), (8,), leaf(8), leaf(8)),
    "attention": lambda: F.scaled_dot_product_attention(leaf(2, 4, 6, 8), leaf(2, 4, 6, 8), leaf(2, 4, 6, 8)),
    "attention, heads inside": lambda: F.scaled_dot_product_attention(
        *(leaf(2, 6, 4, 8).transpose(1, 2) for _ in range(3)), is_causal=True
    ),
    "attention with a mask": lambda: F.scaled_dot_product_attention(
        leaf(2, 4, 6, 8), leaf(2, 4, 7, 8), leaf(2, 4, 7, 8), attn_mask=torch.randn(6, 7)
    ),
    "channels shuffled": lambda: F.channel_shuffle(image(2, 6, 4, 4), 3),
    "random numbers": lambda: [torch.poisson(torch.rand(4, 5).t()), torch._standard_gamma(torch.rand(4, 5).t())],
    "random slopes": lambda: F.rrelu(leaf(4, 5).t(), training=True),
    "dropout": lambda: F.dropout(leaf(4, 5).t(), 0.5),
    "embedding": lambda: F.embedding(torch.tensor([[1, 2], [0, 1]]), leaf(4, 3)),
    "LSTM": lambda: torch.nn.LSTM(4, 3, 2, batch_first=True, dropout=0.1)(leaf(2, 5, 4))[0],
    "GRU": lambda: torch.nn.GRU(4, 3, bidirectional=True)(leaf(5, 2, 4))[0],
    "cross entropy of images": lambda: F.cross_entropy(leaf(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)),
    "foreach": lambda: torch._foreach_add(
        torch._foreach_mul([torch.ones(2, 3), torch.ones(4)], 0.9), [torch.ones(2, 3), torch.ones(4)], alpha=0.1
    ),
    "foreach in place": lambda: torch._foreach_addcdiv_(
        [torch.ones(2, 3)], torch._foreach_sqrt([torch.ones(2, 3)]), [torch.ones(2, 3)], 0.1
    ),
    "foreach on rows": lambda: [
        (x := [torch.ones(2, 3), torch.ones(3, 2).t()]) and None,
        torch._foreach_maximum(x, 0.5),
        torch._foreach_clamp_max(x, 0.5),
        torch._foreach_lerp(x, x[::-1], 0.5),
        torch._foreach_pow(x, 2.0),
        torch._foreach_norm(x),
        torch._foreach_neg_(x),
        torch._foreach_copy_(x, x[::-1]),
        torch._foreach_zero_(x),
        torch._foreach_mul_(x, torch.tensor(2.0)),
        torch._foreach_add_(x, [1.0, 2.0]),
    ],
    "foreach with a tensor for each": lambda: [
        x := [torch.ones(2, 3), torch.ones(4)],
        torch._foreach_clamp_max(x, x[::-1][::-1]),
        torch._foreach_clamp_max(x, [0.5, 2.0]),
        torch._foreach_clamp_max_(x, 0.5),
        torch._foreach_lerp(x, [tensor + 1 for tensor in x], [tensor / 2 for tensor in x]),
        torch._foreach_lerp_(x, [tensor + 1 for tensor in x], 0.5),
    ],
    "indices apart": lambda: leaf(3, 4, 5)[torch.tensor([0, 1]), :, torch.tensor([[1], [2]])],
    "indices of a transpose": lambda: leaf(5, 4, 3).permute(2, 0, 1)[:, torch.tensor([0, 1])],
    "in place on a view": lambda: torch.zeros(4, 4)[1:3].add_(1),
    "views in place": lambda: torch.zeros(2, 3, 1).squeeze_(-1).t_().unsqueeze_(0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rules_agree_on(name):
    check_program(name, 1)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "convolution" in name])
def test_rules_agree_on_kernels_for_several_threads(name):
    check_program(name, 2)


def check_program(name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    mode = Checking(variants=0 if name.startswith("attention") else 8)
    try:
        with mode:
            results = [tensor for tensor in tensor_list(PROGRAMS[name]()) if tensor.requires_grad]
            if results:
                torch.autograd.backward(results, [torch.ones_like(result) for result in results])
    finally:
        torch.set_num_threads(before)
    assert mode.wrong == []
    assert mode.answered
