"""Records of operations agree with PyTorch's schemas and with each other, and no other file keeps a list of its own.

What the schemas of this PyTorch say is asked of every operation it has, so that a new one without a row is noticed.
"""

import ast
import dataclasses
import operator
import re

import pytest
import torch
import torch.nn.functional as F
from package_sources import FILES, PACKAGE, name_of, nodes_in, tree_of

import bothways.lower.ir.graph  # noqa: F401  (registers lowerings)
from bothways import ops, torch_compat
from bothways.fake.kernels import by_kernel
from bothways.fake.rules import rule_for
from bothways.lower.dialects.c_family import operators as in_c
from bothways.lower.dialects.reference import operators as in_python
from bothways.ops import FACTS, LOWERINGS, PRIMITIVES, REDUCTIONS, SHAPE_RULES, WARNINGS, Fails, Gives

aten = torch.ops.aten


def overload(name):
    family, _, chosen = name.partition(".")
    return getattr(getattr(aten, family, None), chosen or "default", None)


def family(target):
    return target._schema.name.removeprefix("aten::")


def has_out(target):
    return any(argument.is_out for argument in target._schema.arguments)


ALL = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
OVERLOADS = [target for target in map(overload, ALL) if target is not None]
FAMILIES = {family(target) for target in OVERLOADS}
NAMES = [name for name in FACTS if "." not in name and "::" not in name]

# Rows ------------------------------------------------------------------------------------------------------


def test_rows_say_what_records_hold():
    fields = {field.name for field in dataclasses.fields(ops.Operation)}
    assert {fact for facts in FACTS.values() for fact in facts} <= fields - {"name", "target"}
    assert all(ops.named(name).name == name for name in FACTS)


# What is no function or method of PyTorch's, and no operator of Python's.
STATEMENTS = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "getattr", "__idiv__", "__imatmul__", "idiv"}
# What one of the versions that are supported lacks.
NOT_EVERYWHERE = {
    "_cudnn_attention_forward_no_dropout_inplace", "_flash_attention_forward_no_dropout_inplace",
    "_scaled_dot_product_attention_math_for_mps", "align_to", "refine_names", "rename",
}  # fmt: skip


# Operations that newer versions have no more.
GONE = {"cholesky.default"}


def test_rows_name_operations_that_there_are():
    places = (torch, torch.Tensor, F, operator)
    strays = {name for name in NAMES if name not in FAMILIES and not any(hasattr(place, name) for place in places)}
    assert strays <= STATEMENTS | NOT_EVERYWHERE
    overloads = [name for name in FACTS if "." in name and overload(name) is None]
    assert set(overloads) <= GONE


def test_what_follows_from_a_name_is_not_said_of_it():
    """A row that repeats what every record says without one would hide that the row is forgotten elsewhere."""
    defaults = {field.name: field.default for field in dataclasses.fields(ops.Operation)}
    told = {(name, fact) for name, facts in FACTS.items() for fact, value in facts.items() if value == defaults[fact]}
    allowed = {(name, fact) for name in ("and_", "or_") for fact in ("writes", "functional")}
    assert {pair for pair in told if pair[1] != "ignores_grad_mode"} == allowed


def test_an_operation_without_a_row_is_answered_with_care():
    unknown = ops.named("something_new")
    assert unknown.fails is Fails.ON_SOME_DATA and unknown.call_fails and unknown.gives is Gives.UNKNOWN
    assert not unknown.is_cheap and not unknown.folds and unknown.shape_rule is None and unknown.lowering is None
    assert ops.named("something_new_").writes and ops.named("something_new_").functional == "something_new"
    assert ops.named("fuzzy_dropout").draws and ops.named("fuzzy_dropout_").draws


def test_an_overload_adds_to_what_its_family_says():
    assert ops.of(aten.squeeze.dim).begins_alike and not ops.of(aten.squeeze.default).begins_alike
    assert ops.of(aten.squeeze.default).is_view and not ops.of(aten.squeeze.default).call_fails
    assert ops.of(aten.bernoulli.default).call_fails and not ops.of(aten.bernoulli.p).call_fails
    assert ops.of(aten.add_.Tensor).functional == "add" and ops.of(aten.pow_.Scalar).functional == "pow.Tensor_Scalar"
    assert ops.of(operator.getitem) is ops.of(len)  # of which nothing is known


# Schemas and tags ------------------------------------------------------------------------------------------


def test_what_schemas_say_is_written_is_known_by_name():
    writers = {family(target) for target in OVERLOADS if target._schema.is_mutable and not has_out(target)}
    # Their overload ``out`` has an argument that is not marked as one.
    writers -= {"fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation"}
    assert sorted(name for name in writers if not ops.named(name).writes) == []
    known = {name for name in NAMES if name in FAMILIES and ops.named(name).writes}
    assert known <= {family(target) for target in OVERLOADS if target._schema.is_mutable}


def test_what_is_tagged_as_random_is_known_to_draw():
    tagged = {family(target) for target in OVERLOADS if torch.Tag.nondeterministic_seeded in target.tags}
    assert sorted(name for name in tagged if not ops.named(name).draws) == []
    # Functions that are made of others, and those whose random numbers are an argument of the operation.
    made = {"dropout1d", "dropout2d", "dropout3d", "gumbel_softmax", "multi_head_attention_forward"}
    given = {"fractional_max_pool2d", "fractional_max_pool3d"}
    assert {name for name in NAMES if ops.named(name).draws} - tagged <= made | given | NOT_EVERYWHERE


# Whose names sound like random numbers, and who draw none.
ONLY_SOUND = {
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}


def test_a_row_for_what_sounds_random_says_whether_it_draws():
    sounding = {name for name in NAMES if ops.table.DRAWING.search(name) and not name.endswith("_")}
    assert {name for name in sounding if not ops.named(name).draws} == ONLY_SOUND


# What is about PyTorch's tests, or gives a view of nothing that is held.
NO_VIEWS = {"_test_autograd_multiple_dispatch_view"}


def test_what_schemas_say_is_a_view_is_known_by_name():
    aliasing = {family(target) for target in OVERLOADS if ops.of(target).aliases and not ops.of(target).writes}
    known = {name for name in aliasing if ops.named(name).is_view or ops.named(name).gives is Gives.SECRET_VIEW}
    assert sorted(aliasing - known - NO_VIEWS) == []
    assert sorted(name for name in NAMES if ops.named(name).gives is Gives.FRESH and name in aliasing) == []
    # Of what ATen has; two give their argument where there is nothing to do, though their schemas do not say so.
    silent = {name for name in NAMES if ops.named(name).is_view and name in FAMILIES - aliasing}
    assert silent == {"type_as", "conj_physical"}


def test_a_tensor_that_becomes_a_view_of_itself_is_not_written_to():
    becoming = {family(target) for target in OVERLOADS if torch.Tag.inplace_view in target.tags}
    resizing = {"resize_", "resize_as_", "set_", "rename_"}  # which capture leaves to Python
    unknown = {name for name in becoming - resizing if not ops.named(name).writes_no_elements}
    assert sorted(unknown) == []


def test_what_is_run_again_draws_nothing_and_writes_nowhere():
    cheap = [ops.of(target) for target in OVERLOADS if ops.of(target).is_cheap]
    assert len(cheap) > 500
    assert [one.name for one in cheap if one.draws] == []
    # Operations in place are never in a traced graph.
    assert {one.name for one in cheap if one.writes and not one.functional and not has_out(one.target)} == set()


# Rules -----------------------------------------------------------------------------------------------------

# Lowered operations without a shape rule, and why PyTorch's own kernels for shapes are enough.
ASKED_OF_PYTORCH = {
    **dict.fromkeys(
        "alias_copy detach_copy expand_copy permute_copy select_copy slice_copy squeeze_copy t_copy transpose_copy "
        "unsqueeze_copy view_copy".split(),
        "copies of views come from functionalization, after shapes were told",
    ),
    **dict.fromkeys("aminmax count_nonzero dist nansum norm".split(), "reductions that are seldom met"),
    **dict.fromkeys("soft_margin_loss soft_margin_loss_backward".split(), "a loss that is seldom met"),
    **dict.fromkeys("ldexp reshape square where".split(), "made of operations that have rules"),
    "_native_batch_norm_legit_no_training": "made by decomposing, where shapes are known",
}


def test_what_is_lowered_has_a_shape_rule_or_a_reason():
    without = {target for target in LOWERINGS if rule_for(target) is None}
    assert {family(target) for target in without} == set(ASKED_OF_PYTORCH)
    helpless = [target for target in without if by_kernel(target) is None and not torch_compat.is_composite(target)]
    assert helpless == []


def test_shape_rules_and_warnings_are_about_operations():
    names = [name for name in SHAPE_RULES if not name.endswith(".foreach")]  # the element's rule, where it is another
    assert [name for name in names if name.partition(".")[0] not in FAMILIES] == []
    assert [name for name in names if "." in name and overload(name) is None] == []
    assert [name for name in WARNINGS if not hasattr(torch.Tensor, name) and not hasattr(torch, name)] == []


def test_a_record_finds_its_rules():
    record = ops.of(aten.exp.default)
    assert record.shape_rule is SHAPE_RULES["exp"] and record.lowering is LOWERINGS[aten.exp.default]
    assert ops.named("std").warns is WARNINGS["std"] and ops.named("exp").warns is None


def test_operations_on_lists_do_what_is_lowered():
    for record in ops.having("each"):
        assert overload(record.each) in LOWERINGS, record.name
        assert record.name.partition(".")[0] in FAMILIES


# Primitives ------------------------------------------------------------------------------------------------

# What dialects have a function for, in the place of a row.
CONVERSION = {"cast"}


def test_every_primitive_has_a_spelling_in_every_dialect():
    assert set(PRIMITIVES) - CONVERSION <= {*in_c.TEMPLATES, *in_c.OF_FLOATING, *in_c.OF_INTEGERS}
    assert set(PRIMITIVES) - CONVERSION <= set(in_python.OPERATIONS)
    assert set(REDUCTIONS) == set(in_c.REDUCTIONS) == set(in_python.REDUCTIONS)


def test_lowerings_make_primitives_that_there_are():
    """Names in calls of ``map``, and of what makes Maps, in ``lower/ir``."""
    found = set()
    for path in (PACKAGE / "lower/ir").rglob("*.py"):
        for node in nodes_in(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("map", "_map"):
                named = node.args[0] if node.args else None
                found |= {named.value} if isinstance(named, ast.Constant) else set()
    assert len(found) > 15 and found <= set(PRIMITIVES)
    assert {record.primitive for record in ops.having("primitive")} <= set(PRIMITIVES)


def test_what_takes_long_is_expensive_in_kernels():
    assert [name for name in PRIMITIVES if ops.named(name).takes_long and not PRIMITIVES[name].is_expensive] == []


# No other lists --------------------------------------------------------------------------------------------

# Where names of operations stand beside what is done with them, and why that is no fact about the operation.
ELSEWHERE = {
    "building/declarations.py": "functions of C's library",
    "capture/shapes/warning_rules.py": "rules, registered under their names",
    "capture/values/tensors/tensor_attributes.py": "methods that capture answers itself",
    "fake/products.py": "products of older versions of PyTorch, made of their parts",
    "fake/rules/": "shape rules, registered under their names",
    "grad/tracing/checked.py": "what is called in the place of operations that look at their data",
    "grad/tracing/layouts.py": "what is called in the place of operations that work on images",
    "lower/dialects/": "how primitives are spelled",
    "lower/ir/lowerings/": "lowerings, registered by overload",
    "torch_compat/names.py": "functions of PyTorch's under private names",
    "torch_compat/statistics.py": "what PyTorch's fake tensors say of normalizations, put right",
}
COLLECTIONS = (ast.Set, ast.List, ast.Tuple, ast.Dict)
ROOTS = ("torch", "aten", "F", "operator")
KNOWN = FAMILIES | set(PRIMITIVES) | {name for name in FACTS if "." not in name}


def operation_named(node):
    """The operation that an element of a collection names, by text or by attribute."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value.removeprefix("aten::").removeprefix("aten.").partition(".")[0]
        return name if name in KNOWN else None
    if isinstance(node, ast.Attribute):
        chain = ast.unparse(node).split(".")
        return next((part for part in chain[1:] if part in KNOWN), None) if chain[0] in ROOTS else None
    return None


def lists_of_operations(tree):
    """Lines on which three operations or more are named, in a collection or a text, and not much else."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.search(r"[^\w\s.]", node.value):
            words = [ast.Constant(word) for word in node.value.split()]
        elif isinstance(node, COLLECTIONS):
            words = node.keys if isinstance(node, ast.Dict) else node.elts
        else:
            continue
        named = sum(operation_named(word) is not None for word in words)
        if named >= 3 and named * 4 > len(words) * 3:
            yield node.lineno


def test_no_list_of_operations_is_kept_elsewhere():
    found, needed = [], set()
    for path in FILES:
        name = name_of(path)
        lines = [] if name.startswith("ops/") else list(lists_of_operations(tree_of(path)))
        places = {place for place in ELSEWHERE if name.startswith(place)}
        found += [] if places else [f"{name}:{line}" for line in lines]
        needed |= places if lines else set()
    assert found == [] and needed == set(ELSEWHERE)


@pytest.mark.parametrize("text, lines", [
    ('SAFE = frozenset("add sub mul".split())', [1]),
    ("VIEWS = {aten.view.default, aten.t.default, aten.permute.default}", [1]),
    ("ROWS = {'aten.add.Tensor': 1, 'aten::sub': 2, 'exp': 3}", [1]),
    ("def f(name):\n    return name in ('relu', 'gelu', 'silu')", [2]),
    ("IN_PLACE = (operator.iadd, operator.isub, operator.imul)", [1]),
    ('COLOURS = ("red", "green", "sub")', []),
    ('"""To add and view or copy."""', []),
    ("x = b.map('add', b.map('mul', y))", []),
])  # fmt: skip
def test_the_rule_on_lists(text, lines):
    assert list(lists_of_operations(ast.parse(text))) == lines
