"""Layers of networks: normalisation, pooling, attention, losses."""

from __future__ import annotations

from bothways.ops.operation import Fails, row

ALL_FLOAT = Fails.UNLESS_ALL_FLOAT

ROWS = (
    row("batch_norm instance_norm", fails=Fails.UNLESS_PARAMETERS_FIT),
    row("group_norm layer_norm", fails=Fails.UNLESS_PARAMETERS_FIT, mixes_on_cpu=True),
    row("rms_norm", fails=Fails.UNLESS_FLOATS_FIT),
    row("native_batch_norm native_batch_norm_backward _native_batch_norm_legit_functional", call_fails=False),
    row("native_batch_norm.default", training_at=5, tolerates_empty=True),
    row("native_batch_norm_backward.default", training_at=7, tolerates_empty=True),
    row("_native_batch_norm_legit_no_training.default", tolerates_empty=True),
    row("_native_batch_norm_legit _batch_norm_with_update", writes=True),
    row("batch_norm_backward", meta_is_wrong=True),
    row("adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d max_pool1d max_pool2d", fails=ALL_FLOAT),
    row("max_pool2d_with_indices", call_fails=False),
    row("cross_entropy cross_entropy_loss nll_loss_nd nll_loss nll_loss2d", of_one_dtype=(0, 2)),
    row("binary_cross_entropy", of_one_dtype=(0, 1, 2)),
    row("huber_loss l1_loss mse_loss smooth_l1_loss", fails=ALL_FLOAT),
    # What ends a loss, mostly.
    row("add dot matmul mean mul neg sub sum", forgets_result=True),
    row(
        "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy l1_loss mse_loss nll_loss smooth_l1_loss",
        forgets_result=True,
    ),
    row("_scaled_dot_product_flash_attention_for_cpu_backward", call_fails=False),
    # Quantisation that follows its data.
    row("fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper", writes=True),
)
