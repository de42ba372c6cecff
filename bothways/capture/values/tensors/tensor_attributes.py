"""What the attributes and methods of tensors are to a capture: metadata, properties that are tensors, questions about
autograd's history, or a reason to stop. Tables of names; ``tensors`` asks them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bothways.capture.shapes.fakes import Fake

# Attributes that follow from guarded metadata. Those that depend on the device ask the Fake, whose meta
# tensor is on no real device.
METADATA: dict[str, Callable[[Fake], object]] = {
    "shape": lambda fake: torch.Size(fake.shape),
    "dtype": lambda fake: fake.dtype,
    "device": lambda fake: fake.device,
    "ndim": lambda fake: len(fake.shape),
    "layout": lambda fake: fake.meta.layout,
    "requires_grad": lambda fake: fake.requires_grad,
    "itemsize": lambda fake: fake.meta.itemsize,
    "nbytes": lambda fake: fake.meta.numel() * fake.meta.itemsize,  # what has no plain sizes has none of its own
    "is_cuda": lambda fake: fake.device.type == "cuda",
    "is_cpu": lambda fake: fake.device.type == "cpu",
    "is_meta": lambda fake: fake.device.type == "meta",
    "is_mps": lambda fake: fake.device.type == "mps",
    "is_xpu": lambda fake: fake.device.type == "xpu",
    "is_sparse": lambda fake: False,
    "is_sparse_csr": lambda fake: False,
    "is_mkldnn": lambda fake: False,
    "is_quantized": lambda fake: False,
    "is_nested": lambda fake: False,
    "output_nr": lambda fake: fake.meta.output_nr,
}

# The same for methods, which take constant arguments.
METADATA_METHODS: dict[str, Callable[..., object]] = {
    "size": lambda fake, *args, **kwargs: fake.meta.size(*args, **kwargs),
    "dim": lambda fake: len(fake.shape),
    "ndimension": lambda fake: len(fake.shape),
    "numel": lambda fake: fake.meta.numel(),
    "nelement": lambda fake: fake.meta.numel(),
    "stride": lambda fake, *args, **kwargs: fake.meta.stride(*args, **kwargs),
    "element_size": lambda fake: fake.meta.element_size(),
    "is_contiguous": lambda fake, **kwargs: fake.meta.is_contiguous(**kwargs),
    "is_floating_point": lambda fake: fake.meta.is_floating_point(),
    "is_complex": lambda fake: fake.meta.is_complex(),
    "is_signed": lambda fake: fake.meta.is_signed(),
    "get_device": lambda fake: -1 if fake.device.index is None else fake.device.index,
}

# Facts about one tensor that metadata does not tell: guarded on inputs, asked of nothing else.
STATE_QUERIES = frozenset("is_inference is_conj is_neg".split())

# Attributes that are tensors computed from this one.
TENSOR_PROPERTIES = frozenset("T mT H mH real imag".split())

# Methods that people know by the function that calls them.
BEHIND = {f"__{name}__": f"{name}()" for name in ("bool", "int", "float", "complex")}

# Methods that need data, change autograd's own state, or hand out what capture cannot follow.
STOPS: dict[str, tuple[str, str]] = {
    **{
        name: ("tensor_value", f"{BEHIND.get(name, f'Tensor.{name}')} reads the tensor's data")
        for name in (
            "item tolist numpy __bool__ __int__ __float__ __complex__ __index__ __array__ data_ptr is_nonzero equal "
            "allclose storage untyped_storage storage_offset is_set_to __dlpack__ is_pinned is_shared __contains__"
        ).split()
    },
    **{
        name: ("mutation_unknown", f"Tensor.{name} changes what the tensor is")
        for name in "set_ resize_ resize_as_ share_memory_ pin_memory swap_ detach_ __setstate__".split()
    },
    "__deepcopy__": ("call_unknown", "a tensor is deep-copied"),
    "__format__": ("tensor_value", "a tensor is formatted as text"),
    "map_": ("call_unknown", "Tensor.map_ calls Python for each element"),
    "apply_": ("call_unknown", "Tensor.apply_ calls Python for each element"),
}

# The mark of a tensor that stays where it is, "guarded" when a program may rely on that.
STATIC_ADDRESS = "_dynamo_static_input_type"

HOOK_METHODS = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})
# Questions whose answer differs between a tensor and the leaf that stands for it in a trace.
ABOUT_HISTORY = frozenset({"grad_fn", "is_leaf", "grad", "output_nr"})
# What autograd may refuse to answer, or to do: of a view whose base was changed, for one.
NEEDS_HISTORY = ABOUT_HISTORY | HOOK_METHODS | {"requires_grad_"}
# What PyTorch forbids inside of a transform, or answers by the transform's own history.
NOT_IN_TRANSFORMS = NEEDS_HISTORY | {"requires_grad", "data", "retains_grad", "_version", "backward", "detach_"}
# What may differ for a tensor of the same sizes and dtype when the same code runs later: a gradient's layout, whether
# autograd differentiates again.
LATER = ABOUT_HISTORY | {"stride", "is_contiguous", "requires_grad"}
