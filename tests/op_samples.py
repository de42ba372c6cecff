"""PyTorch's own samples of its operations, as cases for the native backend, and what is found about them.

Every sample runs forward and, where it has one, backward, on a device; many are built at once.
"""

import itertools
import json
import math
import os
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from native_checking import cases_of, run_cases, unlowered, with_tensors_first

from bothways.lower.ir.prims import COMPUTABLE
from bothways.torch_compat import tree_flatten, tree_unflatten

methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
_core = pytest.importorskip("torch.testing._internal.opinfo.core")
_utils = pytest.importorskip("torch.testing._internal.common_utils")

# PyTorch searches the stack for its own test, for each operation; pytest's stack is deep, and has none of its tests.
_core.extract_test_fn = _utils.extract_test_fn = lambda: None

op_db = methods.op_db

# What takes long and is made of operations that others have as well, or has none that kernels could compute.
SKIPPED = tuple("linalg. fft. svd pca_lowrank ormqr signal. sparse. lu cholesky jiterator".split())
MADE_OF_OTHERS = ("special.", "_foreach", "masked.")  # left to the slow tests
UNDEFINED = ("empty", "new_empty")  # what is in memory that was never written to
FOREACH = [
    operation
    for name in ("unary", "binary", "pointwise", "reduce", "other")
    for operation in getattr(methods, f"foreach_{name}_op_db", [])
]
OPERATIONS = [
    operation
    for operation in [*op_db, *FOREACH]
    if not operation.name.startswith((*SKIPPED, *UNDEFINED))
]
REPORT = os.environ.get("BOTHWAYS_CONFORMANCE")  # the folder that findings are written to
# dtype -> how many samples of each operation the slow test takes.
SWEEP = {
    torch.float32: 10, torch.bfloat16: 6, torch.int64: 5,
    torch.float64: 2, torch.float16: 2, torch.int32: 2, torch.uint8: 2, torch.bool: 3,
}  # fmt: skip
TOGETHER = 60  # cases that are built at once
# Eager's vectors and the ends of its loops give different things; special_values.py knows, and tries it.
DISAGREES_WITH_ITSELF = tuple(
    f"nn_functional_{name}"
    for name in "gelu elu celu selu relu6 hardtanh hardswish hardshrink softshrink".split()
) + ("logit",)
# What is put into the tensors of samples.
SPECIAL = (
    lambda dtype: [math.nan],
    lambda dtype: [math.inf, -math.inf],
    lambda dtype: [0.0, -0.0, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, -torch.finfo(dtype).tiny],
)
# What training programs do most, for the dtypes that the fast tests would otherwise leave out.
FREQUENT = (
    "add sub mul div pow exp log sqrt rsqrt abs neg sign tanh sigmoid erf where clamp maximum minimum eq lt floor "
    "round remainder floor_divide sum mean amax max var std prod any argmax norm softmax log_softmax logsumexp cat "
    "stack permute reshape expand tril masked_fill cumsum lerp addcmul nn_functional_gelu nn_functional_silu "
    "nn_functional_relu nn_functional_layer_norm nn_functional_group_norm nn_functional_batch_norm "
    "nn_functional_cross_entropy nn_functional_mse_loss nn_functional_embedding nn_functional_dropout "
    "nn_functional_linear gather index_select"
).split()


def first_samples(operation, dtype, count, *, requires_grad, device="cpu"):
    """The first samples of an operation, made one by one."""
    return itertools.islice(operation.sample_inputs(device, dtype, requires_grad=requires_grad), count)


class Findings:
    """What happened to the samples: how many there were, which ATen operations they met, what went wrong."""

    def __init__(self, device="cpu"):
        self._device = device
        self.cases, self.met, self.left = 0, Counter(), Counter()
        self.left_though_plain = Counter()  # of cases where every tensor has elements of a dtype that kernels know
        self.failed, self.not_run = {}, {}
        self._waiting = []

    def add(self, operation, dtype, count, special=False):
        differentiable = dtype.is_floating_point and operation.supports_autograd
        differentiable = differentiable and dtype in operation.supported_backward_dtypes(self._device)
        try:
            for sample in first_samples(operation, dtype, count, requires_grad=differentiable, device=self._device):
                samples_of = special_samples(sample) if special else [sample]
                self._waiting += [case for own in samples_of for case in self._cases(operation, own)]
        except Exception as error:  # of a sample that does not run, whatever it is
            self.not_run[operation.formatted_name] = f"{type(error).__name__}: {error}"[:200]
        if len(self._waiting) >= TOGETHER:
            self.run()

    def _cases(self, operation, sample):
        function, tensors = with_tensors_first(operation.op, (sample.input, *sample.args), sample.kwargs)
        try:
            return cases_of(operation.formatted_name, function, tensors)
        except Exception as error:  # of what cannot be traced: kernels have nothing to do with it
            self.not_run[operation.formatted_name] = f"{type(error).__name__}: {error}"[:200]
            return []

    def run(self):
        for outcome in run_cases(self._waiting):
            if outcome.wrong:
                shapes = [tuple(tensor.shape) for tensor in outcome.case.inputs]
                self.failed.setdefault(outcome.case.name, []).append(f"{shapes}: {outcome.wrong[0]}")
        self.cases += len(self._waiting)
        if REPORT:
            for case in self._waiting:
                nodes = [node for node in case.graph.graph.nodes if node.op == "call_function"]
                self.met.update(str(node.target) for node in nodes if hasattr(node.target, "_schema"))
                left = [str(target) for target in unlowered(case) if hasattr(target, "_schema")]
                self.left.update(left)
                self.left_though_plain.update(left if is_plain(case) else [])
        self._waiting = []

    def none_failed(self):
        """Raises with what was computed and what eager computes, where that differs."""
        problems = [f"{name} {problem}" for name, problems in self.failed.items() for problem in problems]
        assert not problems, "\n".join(problems)

    def write(self, name):
        if REPORT:
            Path(REPORT).mkdir(parents=True, exist_ok=True)
            facts = {key: value for key, value in vars(self).items() if not key.startswith("_")}
            (Path(REPORT) / f"{name}.json").write_text(json.dumps(facts, indent=1))


def special_samples(sample):
    """The sample with some of its numbers replaced: by NaN, by infinities, and by zeros and what is next to them.

    Which are replaced depends on the tensor, so that special numbers meet ordinary ones and each other.
    """
    for values in SPECIAL:
        count = itertools.count()

        def put(leaf, values=values, count=count):
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
                return leaf
            changed = leaf.detach().clone()
            first = next(count)
            for number, place in enumerate(range(first % 2, changed.numel(), 3)):
                index = unraveled(place, changed.shape)
                changed[index] = values(changed.dtype)[number % len(values(changed.dtype))]
            return changed.requires_grad_(leaf.requires_grad)

        leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        own, args, kwargs = tree_unflatten([put(leaf) for leaf in leaves], structure)
        yield SimpleNamespace(input=own, args=args, kwargs=kwargs)


def unraveled(place, shape):
    return tuple(index.item() for index in torch.unravel_index(torch.tensor(place), shape)) if shape else ()


def is_plain(case):
    values = [node.meta.get("val") for node in case.graph.graph.nodes]
    fakes = [fake for value in values for fake in (value if isinstance(value, tuple) else [value])]
    return all(fake.numel() and fake.dtype in COMPUTABLE for fake in fakes if isinstance(fake, torch.Tensor))


def findings_about(operations, dtype, count, special=False, device="cpu"):
    findings = Findings(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operation in operations:
            left_out = special and operation.formatted_name in DISAGREES_WITH_ITSELF
            if dtype in operation.supported_dtypes(torch.device(device).type) and not left_out:
                findings.add(operation, dtype, count, special)
        findings.run()
    return findings


def name_of(dtype):
    return str(dtype).removeprefix("torch.")
