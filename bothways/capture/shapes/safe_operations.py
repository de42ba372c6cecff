"""Operations that cannot fail once their shapes and dtypes are known, and those that draw random numbers.

Guards fix shapes and dtypes, so the former never raise inside a compiled graph. Any other may raise on the data it
meets (an index out of range, a singular matrix); the program is then written so that such a call runs again as
plain Python, where the user's own ``except`` and ``finally`` are, and draws the same random numbers.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch.fx

from bothways.capture.shapes.changes import may_fail_in_place
from bothways.fake import holds
from bothways.node_facts import facts_of_call

SAFE = frozenset(
    (
        # arithmetic and pointwise functions
        "add sub mul truediv div true_divide neg pos abs rsub sin cos tan asin acos atan "
        "sinh cosh tanh exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sigmoid erf floor ceil round trunc "
        "sign clamp clip maximum minimum where eq ne lt le gt ge logical_not "
        "logical_and logical_or isnan isinf isfinite nan_to_num masked_fill relu pad scaled_dot_product_attention "
        # reductions
        "sum mean prod std var amax amin max min argmax argmin all any cumsum cumprod logsumexp sort argsort topk "
        # shapes and copies
        "view reshape permute transpose t unsqueeze squeeze expand expand_as view_as flatten unflatten cat stack split "
        "chunk unbind narrow repeat tile roll flip tril triu diagonal movedim swapaxes contiguous clone detach to "
        "float half double bfloat16 int long bool type_as size getattr "
        # factories and random numbers
        "zeros ones empty full arange linspace eye zeros_like ones_like empty_like full_like rand randn rand_like "
        "randn_like new_zeros new_ones new_empty new_full tensor as_tensor "
        # state
        "_set_grad_enabled _enter_autocast _exit_autocast"
    ).split()
)
# The same of numbers with a fraction; some kernels have no other dtypes, and shapes do not tell.
SAFE_OF_FLOATS = frozenset(
    (
        "matmul mm bmm addmm baddbmm einsum outer dot mv lerp addcmul addcdiv norm copy "
        # optimizers' updates
        "_fused_adam _fused_adamw _fused_sgd _fused_adagrad "
        # activations, normalisation, layers
        "relu6 gelu silu mish elu selu celu leaky_relu hardtanh hardswish hardsigmoid softplus softsign "
        "logsigmoid tanhshrink softmax log_softmax softmin linear conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d layer_norm group_norm rms_norm instance_norm dropout max_pool1d max_pool2d "
        "avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d mse_loss l1_loss "
        "smooth_l1_loss huber_loss normalize cosine_similarity"
    ).split()
)
# Those whose numbers become elements, or meet them.
WITH_NUMBERS = frozenset(
    "add sub rsub lerp addcmul addcdiv clamp clip where masked_fill fill full full_like new_full tensor as_tensor "
    "arange linspace pad nan_to_num hardtanh leaky_relu elu celu eq ne lt le gt ge".split()
)
SAFE_OF_WHOLE = frozenset("and_ or_ xor invert".split())


def may_fail(node: torch.fx.Node) -> bool:
    """Whether the operation can raise on the data it meets."""
    if node.op in ("placeholder", "output"):
        return False
    if facts_of_call(node.target).warns:
        return True  # where warnings are errors
    if node.target is operator.getitem:
        return len(node.all_input_nodes) > 1  # an index that is a tensor can be out of range
    if node.target is operator.setitem and _fills_mask(node):
        return may_fail_in_place(node)
    name = _name(node).removeprefix("_foreach_")
    if name in IN_PLACE or (name.endswith("_") and _takes_any_data(node, name[:-1])):
        return may_fail_in_place(node)
    return not _takes_any_data(node, name)


def _fills_mask(node: torch.fx.Node) -> bool:
    """Whether it is ``x[mask] = number`` with a mask for each element."""
    target, mask = (
        place.meta.get("example_value") if isinstance(place, torch.fx.Node) else None for place in node.args[:2]
    )
    if not isinstance(target, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    number: Any = node.args[2]
    is_number = type(number) in (int, float) and holds(target.dtype, number)
    return is_number and mask.dtype is torch.bool and tuple(mask.shape) == tuple(target.shape)


def _takes_any_data(node: torch.fx.Node, name: str) -> bool:
    if name in WITH_NUMBERS and not _holds_numbers(node):
        return False
    if name in SAFE:
        return node.kwargs.get("rounding_mode") is None  # whole numbers cannot be divided by zero
    kinds = {example.is_floating_point() for example in _tensors(node)}
    if name == "pow":
        return True in kinds  # no whole number has a negative power
    return (name in SAFE_OF_FLOATS and False not in kinds) or (name in SAFE_OF_WHOLE and True not in kinds)


def _holds_numbers(node: torch.fx.Node) -> bool:
    """Whether the dtypes at hand hold the numbers that are given: ATen refuses to fill bytes with 300."""
    arguments: list[Any] = [*node.args, *node.kwargs.values()]
    numbers = [value for value in arguments if type(value) in (int, float)]
    result = node.meta.get("example_value")
    tensors = [*_tensors(node), *([result] if isinstance(result, torch.Tensor) else [])]
    return all(holds(tensor.dtype, number) for number in numbers for tensor in tensors)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    examples = [operand.meta.get("example_value") for operand in node.all_input_nodes]
    return [example for example in examples if isinstance(example, torch.Tensor)]


# Operators that write to what is on their left.
IN_PLACE = frozenset("iadd isub imul itruediv".split())

RANDOM = re.compile(
    r"rand|dropout|bernoulli|normal(?!iz)|multinomial|poisson|uniform|exponential|geometric|cauchy|rrelu|gumbel"
    r"|attention|lstm|gru|rnn"
)


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the operation may draw random numbers; of functions that are not PyTorch's, that is not known."""
    if node.op in ("placeholder", "output"):
        return False
    module = "torch" if isinstance(node.target, str) else getattr(node.target, "__module__", None) or "torch"
    known = module.partition(".")[0] in ("torch", "_operator", "builtins", "math")
    return not known or bool(RANDOM.search(_name(node)))


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
