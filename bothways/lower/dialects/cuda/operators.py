"""How each primitive operation is written in CUDA C++: the tables of C, and what eager does otherwise on a GPU."""

from __future__ import annotations

import torch

from bothways.lower.dialects.c_family.operators import COMPUTED, OF_INTEGERS, TEMPLATES, library_suffix

OF_GPU: dict[str, str] = {
    **TEMPLATES,
    "multiply_add": "fma{F}({0}, {1}, {2})",
    "rsqrt": "rsqrt{F}({0})",
    "within": "within({0}, {1})",
}
OF_FLOATING: dict[str, str] = {
    "abs": "fabs{F}({0})",
    "sigmoid": "sigmoid_{T}({0})",
    "tanh": "tanh_{T}({0})",
    "share": "share_{T}({0}, {1})",
}
OF_HALVES: dict[str, str] = {**OF_FLOATING, "sigmoid": "sigmoid_of_half({0})", "tanh": "tanh_of_half({0})"}
# A quotient by a number of the program, which eager turns into a product.
DIVIDED = "({0} * (1 / {1}))"

# Reductions: the value of nothing, and how one more value is taken in.
REDUCTIONS: dict[str, tuple[str, str]] = {
    "sum": ("0", "{0} + {1}"),
    "prod": ("1", "{0} * {1}"),
    "max": ("LOWEST_{T}", "max_{T}({0}, {1})"),
    "min": ("HIGHEST_{T}", "min_{T}({0}, {1})"),
    "any": ("0", "({0} | {1})"),
    "all": ("1", "({0} & {1})"),
}


def operation(op: str, dtype: torch.dtype, args: list[str], by_number: bool = False) -> str:
    """The expression of an operation whose arguments have the given dtype; ``by_number`` if the last is one."""
    kind = COMPUTED[dtype]
    own = OF_FLOATING if dtype.is_floating_point else OF_INTEGERS
    if dtype in (torch.bfloat16, torch.float16):
        own = OF_HALVES
    template = own.get(op) or OF_GPU[op]
    if op == "div" and by_number and dtype.is_floating_point:
        template = DIVIDED
    template = template.replace("{F}", library_suffix(dtype)).replace("{T}", kind).replace("(T)", f"({kind})")
    return template.format(*args)
