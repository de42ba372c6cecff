"""Operations that draw random numbers, or may: those with a dropout among their arguments draw where it is not zero.

As a call of ATen, drawing fails on nothing but the data that says how: probabilities.
"""

from __future__ import annotations

from bothways.ops.operation import Fails, row

ROWS = (
    row("rand rand_like randn randn_like", draws=True, fails=Fails.UNLESS_GIVES_FLOAT, call_fails=False),
    row("randint randint_like randperm random", draws=True),
    row("uniform", draws=True, call_fails=False),
    row("bernoulli", draws=True),
    row("bernoulli.p", call_fails=False),
    row("binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson", draws=True),
    row("_sample_dirichlet _standard_gamma", draws=True),
    # Layers.
    row("dropout", draws=True, fails=Fails.UNLESS_ALL_FLOAT, asks_whole=True),
    row("alpha_dropout dropout1d dropout2d dropout3d", draws=True, asks_whole=True),
    row("feature_alpha_dropout feature_dropout native_dropout", draws=True, asks_whole=True),
    row("_cudnn_init_dropout_state _fill_mem_eff_dropout_mask_ _fused_dropout", draws=True),
    row("rrelu rrelu_with_noise_functional", draws=True),
    row("rrelu_with_noise", draws=True, writes=True),
    row("gumbel_softmax fractional_max_pool2d fractional_max_pool3d", draws=True),
    row("scaled_dot_product_attention", draws=True, fails=Fails.UNLESS_GIVES_FLOAT),
    row("_scaled_dot_product_flash_attention_for_cpu", draws=True, call_fails=False),
    row(
        "_cudnn_attention_forward_no_dropout_inplace _flash_attention_forward_no_dropout_inplace",
        draws=True, writes=True,
    ),
    row(
        "multi_head_attention_forward _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_fused_attention_overrideable "
        "_cudnn_attention_backward _cudnn_attention_forward _efficient_attention_forward _flash_attention_forward "
        "_triton_scaled_dot_attention _fused_sdp_choice _nested_tensor_softmax_with_shape",
        draws=True,
    ),
    row("gru lstm rnn_relu rnn_tanh _cudnn_rnn _lstm_mps miopen_rnn", draws=True),
)
