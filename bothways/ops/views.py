"""Operations that show elements under other indices, and those that ask how a tensor lies."""

from __future__ import annotations

from bothways.ops.operation import Fails, Gives, row

NEVER, VIEW = Fails.NEVER, Gives.VIEW

ROWS = (
    row("expand permute squeeze transpose unsqueeze view", fails=NEVER, call_fails=False, gives=VIEW),
    row("as_strided select slice", call_fails=False, gives=VIEW),
    row("detach diagonal expand_as movedim narrow swapaxes t unflatten view_as", fails=NEVER, gives=VIEW),
    row("adjoint broadcast_to getitem imag moveaxis real swapdims unfold", gives=VIEW),
    row("alias conj mH mT matrix_H numpy_T positive view_as_complex view_as_real", gives=VIEW),
    row("_conj _neg_view _reshape_alias lift_fresh linalg_diagonal slice_inverse", gives=VIEW),
    row("_fw_primal _make_dual _unpack_dual", gives=VIEW),
    # The argument itself, or a copy: by its dtype, by where it is, by whether there is something to do.
    row("bfloat16 bool double float half int long type_as", fails=NEVER, gives=VIEW),
    row("byte char short type cpu cuda pin_memory conj_physical resolve_conj resolve_neg", gives=VIEW),
    row("_autocast_to_full_precision _autocast_to_reduced_precision", gives=VIEW),
    # Of tensors that are not dense, or whose dimensions have names.
    row("align_to refine_names rename", gives=VIEW),
    row("_indices _values ccol_indices coalesce col_indices crow_indices indices row_indices values", gives=VIEW),
    row("_nested_get_values _nested_view_from_buffer _nested_view_from_jagged _sparse_broadcast_to", gives=VIEW),
    row("getattr", fails=NEVER, gives=VIEW),
    row("reshape", fails=NEVER, call_fails=False, gives=Gives.BY_LAYOUT),
    row("contiguous flatten to", fails=NEVER, gives=Gives.BY_LAYOUT),
    row("ravel reshape_as", gives=Gives.BY_LAYOUT),
    row("_unsafe_view", gives=Gives.SECRET_VIEW),
    # Several at once.
    row("chunk split unbind", fails=NEVER, gives=VIEW, takes_apart=True),
    row("dsplit hsplit split_with_sizes tensor_split vsplit", gives=VIEW, takes_apart=True),
    row("unsafe_chunk unsafe_split unsafe_split_with_sizes", gives=Gives.SECRET_VIEW),
    # What single overloads are besides.
    row("detach.default expand.default squeeze.dim squeeze.dims unsqueeze.default view.default", begins_alike=True),
    row("permute.default t.default transpose.int", begins_alike=True, permutes=True),
    row("diagonal.default unfold.default", permutes=True),
    # In place: the tensor itself becomes the view.
    row("as_strided_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_", writes_no_elements=True, reshapes=True),
    row("detach_ requires_grad_", writes_no_elements=True),
    row("transpose_.default", functional="transpose.int"),
    # Questions.
    row("numel dim", folds=True, is_question=True),
    row("size", fails=NEVER, is_question=True),
    row("stride prim::device prim::layout", is_question=True),
    row("is_complex is_contiguous is_floating_point is_same_size is_signed", folds=True),
    row("element_size ndimension nelement broadcast_shapes can_cast promote_types result_type", folds=True),
)
