"""Operations that cannot fail once their shapes and dtypes are known, and those that draw random numbers.

Guards fix shapes and dtypes, so the former never raise inside a compiled graph. Any other may raise on the data it
meets (an index out of range, a singular matrix); the program is then written so that such a call runs again as
plain Python, where the user's own ``except`` and ``finally`` are, and draws the same random numbers.
"""

from __future__ import annotations

import operator
import re

import torch.fx

from bothways.capture.changes import may_fail_in_place

SAFE = frozenset(
    (
        # arithmetic and pointwise functions
        "add sub mul truediv div true_divide neg pos abs matmul mm bmm addmm baddbmm rsub sin cos tan asin acos atan "
        "sinh cosh tanh exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sigmoid erf floor ceil round trunc "
        "sign clamp clip maximum minimum where lerp addcmul addcdiv eq ne lt le gt ge and_ or_ xor invert logical_not "
        "logical_and logical_or isnan isinf isfinite nan_to_num masked_fill "
        # activations, normalisation, layers
        "relu relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus softsign "
        "logsigmoid tanhshrink softmax log_softmax softmin linear conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d layer_norm group_norm rms_norm instance_norm dropout max_pool1d max_pool2d "
        "avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d scaled_dot_product_attention mse_loss l1_loss "
        "smooth_l1_loss huber_loss pad normalize cosine_similarity "
        # reductions
        "sum mean prod std var norm amax amin max min argmax argmin all any cumsum cumprod logsumexp sort argsort topk "
        # shapes and copies
        "view reshape permute transpose t unsqueeze squeeze expand expand_as view_as flatten unflatten cat stack split "
        "chunk unbind narrow repeat tile roll flip tril triu diagonal movedim swapaxes contiguous clone detach to "
        "float half double bfloat16 int long bool type_as einsum outer dot mv size getattr "
        # factories and random numbers
        "zeros ones empty full arange linspace eye zeros_like ones_like empty_like full_like rand randn rand_like "
        "randn_like new_zeros new_ones new_empty new_full tensor as_tensor "
        # state
        "_set_grad_enabled _enter_autocast _exit_autocast"
    ).split()
)


def may_fail(node: torch.fx.Node) -> bool:
    """Whether the operation can raise on the data it meets."""
    if node.op in ("placeholder", "output"):
        return False
    if node.target is operator.getitem:
        return len(node.all_input_nodes) > 1  # an index that is a tensor can be out of range
    name = _name(node)
    if name == "pow":
        return not any(map(_is_floating, node.all_input_nodes))  # no whole number has a negative power
    if name in IN_PLACE or (name.endswith("_") and name.removeprefix("_foreach_")[:-1] in SAFE):
        return may_fail_in_place(node)
    return name.removeprefix("_foreach_") not in SAFE


def _is_floating(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.is_floating_point()


# Operators that write to what is on their left.
IN_PLACE = frozenset("iadd isub imul itruediv".split())

RANDOM = re.compile(
    r"rand|dropout|bernoulli|normal(?!iz)|multinomial|poisson|uniform|exponential|geometric|cauchy|rrelu|gumbel"
    r"|attention|lstm|gru|rnn"
)


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the operation may draw random numbers; of functions that are not PyTorch's, nobody knows."""
    if node.op in ("placeholder", "output"):
        return False
    module = "torch" if isinstance(node.target, str) else getattr(node.target, "__module__", None) or "torch"
    known = module.partition(".")[0] in ("torch", "_operator", "builtins", "math")
    return not known or bool(RANDOM.search(_name(node)))


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
