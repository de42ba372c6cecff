"""Operations that no CUDA graph can hold: they wait for the device, or give as many elements as the data say."""

from __future__ import annotations

# By the names of their families.
WAITING = frozenset(
    [
        "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "masked_select", "unique_dim", "_unique", "_unique2",
        "unique_consecutive", "unique_dim_consecutive", "bincount", "histc", "histogram", "equal", "is_nonzero",
        "_ctc_loss", "_ctc_loss_backward", "_assert_scalar", "repeat_interleave", "multinomial", "segment_reduce",
        "_linalg_check_errors", "linalg_eig", "linalg_eigvals", "_linalg_eigh", "_linalg_svd", "linalg_lstsq",
        "linalg_inv_ex", "linalg_cholesky_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_qr", "geqrf", "ormqr",
        "combinations", "_embedding_bag", "tolist", "_sparse_coo_tensor_with_dims", "_to_dense", "to_sparse",
        "_cudnn_rnn", "_cudnn_rnn_backward", "mode", "kthvalue", "median", "nanmedian", "randperm",
        "lstm", "gru", "rnn_tanh", "rnn_relu",
    ]
)  # fmt: skip
