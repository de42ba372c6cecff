"""Operations that make tensors, copy them, put them together, and write to parts of them."""

from __future__ import annotations

from bothways.ops.operation import Fails, Gives, row

NEVER, FRESH = Fails.NEVER, Gives.FRESH

ROWS = (
    # From nothing.
    row("empty new_empty", fails=NEVER),
    row("eye new_ones new_zeros ones zeros", fails=NEVER, moves=True),
    row("arange full new_full", fails=NEVER, takes_numbers=True, moves=True),
    row("scalar_tensor", moves=True),
    row("arange linspace", of_numbers=True),
    row("arange", of_reals=True),
    row("linspace tensor as_tensor", fails=NEVER, takes_numbers=True),
    row("empty_like", fails=NEVER, gives=FRESH),
    row("ones_like zeros_like", fails=NEVER, gives=FRESH, moves=True),
    row("full_like", fails=NEVER, gives=FRESH, takes_numbers=True, moves=True),
    # Copies.
    row("clone", fails=NEVER, gives=FRESH),
    row("_to_copy lift_fresh_copy", moves=True),
    row("copy", fails=Fails.UNLESS_ALL_FLOAT, moves=True),
    row("flip roll tile", fails=NEVER),
    row("repeat tril triu", fails=NEVER, moves=True),
    row("pad", fails=NEVER, takes_numbers=True),
    row("constant_pad_nd", moves=True),
    # Of several.
    row("cat", fails=NEVER, moves=True, joins=True),
    row("stack", fails=NEVER, joins=True),
    row("concat concatenate dstack hstack vstack", joins=True),
    # To parts.
    row("diagonal_scatter select_scatter slice_scatter", moves=True),
    row(
        "index_add index_copy index_put masked_scatter scatter scatter_add scatter_reduce",
        writes_by_index=True, copies_first=True,
    ),
    row("index_fill put", copies_first=True),
    # By indexes that may be out of range.
    row("embedding gather index index_select nll_loss2d_forward nll_loss_forward take", checks_indexes=True),
    row("index_add index_copy index_fill index_put put scatter scatter_add scatter_reduce", checks_indexes=True),
    row("fill", takes_numbers=True),
    row("fill_ zero_", may_write_shared=True),
    # Whose schemas say so and whose names do not.
    row("record_stream retain_grad set_data", writes=True),
    row("_cummax_helper _cummin_helper", writes=True),
    # What compiled code asks of the state around it.
    row("_set_grad_enabled _enter_autocast _exit_autocast", fails=NEVER),
)
