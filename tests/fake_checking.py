"""Compares thin tensors with real ones: a mode that asks the rules about every ATen operation that runs.

``Checking`` runs each operation on the real tensors and on thin ones, and also on copies of its arguments that are
laid out and typed otherwise. What the rules answer has to agree with what PyTorch does; they may decline.
"""

import random
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from bothways.fake import NotThin, answer, thin_like
from bothways.fake.formulas import shares_extreme
from bothways.fake.mode import UNFORESEEN
from bothways.fake.rules import rule_for
from bothways.torch_compat import tree_flatten, tree_map_only, tree_unflatten

# Errors that no rule can foresee.
ABOUT_DATA = ("out of bounds", "out of DATA bounds", "out of range", "ZeroDivisionError", "without overflow")


def storage(tensor):
    return tensor.untyped_storage()._cdata


def describe(tree):
    """Sizes, strides, offset and dtype of each tensor, and which of them share memory."""
    leaves, structure = tree_flatten(tree)
    memory = {}
    facts = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            place = memory.setdefault(storage(leaf), len(memory))
            shape, stride, offset = tuple(leaf.shape), leaf.stride(), leaf.storage_offset()
            facts.append((shape, stride, offset, leaf.dtype, str(leaf.device), place))
        else:
            facts.append(leaf)
    return facts


def tensor_list(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


class Checking(TorchDispatchMode):
    """Collects ``wrong`` answers, and counts what was ``answered`` and what was ``declined``.

    ``variants`` says how many other layouts and dtypes of the arguments of each call are tried, a sample of all.
    """

    def __init__(self, variants=100, seed=0):
        super().__init__()
        self.wrong, self.answered, self.declined = [], Counter(), Counter()
        self.variants, self.random, self.seen = variants, random.Random(seed), set()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with _disable_current_modes():
            if func is torch.ops.aten.mul.Tensor and shares_extreme(*args):
                return func(*args)  # autograd takes tensors below a mode for stand-ins; the rule is that of tensors
            if self.variants and self.is_new(func, args, kwargs):
                self.check_variants(func, args, kwargs)
            return self.check(func, args, kwargs)

    def is_new(self, func, args, kwargs):
        """Whether variants of a call with such arguments were not looked at before."""
        if torch.Tag.nondeterministic_seeded in func.tags or any(a.is_out for a in func._schema.arguments):
            return False
        key = (func, str(describe((args, kwargs))))
        return key not in self.seen and not self.seen.add(key)

    def check_variants(self, func, args, kwargs):
        leaves, structure = tree_flatten((args, kwargs))
        positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        plain = all(type(leaves[at]) is torch.Tensor and leaves[at].layout is torch.strided for at in positions)
        if not positions or not plain or any(leaves[at].numel() > 20_000 for at in positions):
            return
        choices = [[self.random.choice(positions)], positions]
        # Kernels of backward formulas trust their arguments to fit together.
        changes = LAYOUTS if "backward" in func.name() else CHANGES
        for change in self.random.sample(changes, min(self.variants, len(changes))):
            for chosen in choices[: 1 + (len(positions) > 1)]:
                varied = list(leaves)
                for at in chosen:
                    varied[at] = change(leaves[at])
                if func._schema.is_mutable:
                    varied = [
                        leaf.clone() if isinstance(leaf, torch.Tensor) and leaf is own else leaf
                        for leaf, own in zip(varied, leaves, strict=True)
                    ]
                try:
                    self.check(func, *tree_unflatten(varied, structure), is_variant=True)
                except Exception:  # PyTorch refuses; that the rules did not answer was checked
                    pass

    def check(self, func, args, kwargs, is_variant=False):
        name = func.name()
        before = describe((args, kwargs)) if func._schema.is_mutable else None
        try:
            memory = {}
            thin_args, thin_kwargs = tree_map_only(torch.Tensor, lambda t: thin_like(t, memory), (args, kwargs))
            thin = answer(func, thin_args, thin_kwargs)
        except NotThin as declined:
            self.declined[name] += 1
            if not is_variant and isinstance(declined.__cause__, UNFORESEEN):
                self.wrong.append((name, describe((args, kwargs)), "", f"{declined.__cause__!r} in the rule"))
            return None if is_variant else func(*args, **kwargs)
        self.answered[name] += 1
        try:
            real = func(*args, **kwargs)
        except Exception as error:
            # PyTorch's own kernels for shapes do not look at all that is refused when the operation runs.
            if any(text in str(error) for text in ABOUT_DATA) or rule_for(func) is None:
                raise
            self.wrong.append((name, describe((args, kwargs)), f"raises {type(error).__name__}: {error}", "answers"))
            raise
        if name == "aten::mkldnn_rnn_layer":
            real_facts, thin = (*real[:3], None), thin[:3] + (None,)  # the fourth is the kernel's own scratch
        else:
            real_facts = real
        expected = describe((args, kwargs, real_facts))
        found = describe((thin_args, thin_kwargs, thin))
        if expected != found:
            count = len(tree_flatten((args, kwargs))[0])
            self.wrong.append((name, before or describe((args, kwargs)), expected[count:], found[count:]))
        return real


def transposed(tensor):
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def swapped(tensor):
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor


def gapped(tensor):
    return tensor.repeat_interleave(2, -1)[..., ::2] if tensor.dim() else tensor


def expanded(tensor):
    return tensor[..., :1].expand(tensor.shape) if tensor.dim() else tensor


def expanded_outside(tensor):
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


def channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else tensor


def shifted(tensor):
    return torch.cat([tensor[:1], tensor])[1:] if tensor.dim() and len(tensor) else tensor


def narrowed(tensor):
    """One element in each dimension but the first, where the operation allows it."""
    return tensor[(slice(None), *(slice(0, 1),) * (tensor.dim() - 1))] if tensor.dim() else tensor


def emptied(tensor):
    return tensor[:0] if tensor.dim() else tensor


def scalar(tensor):
    return tensor.flatten()[0].clone() if tensor.numel() else tensor


def typed(dtype):
    def change(tensor):
        return tensor.to(dtype)

    return change


LAYOUTS = [transposed, swapped, gapped, expanded, expanded_outside, channels_last, shifted]
DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
CHANGES = [*LAYOUTS, narrowed, emptied, scalar, *map(typed, DTYPES)]
