"""Operations that compute each element from the elements at its place."""

from __future__ import annotations

from bothways.ops.operation import Fails, Gives, LooksLike, Says, row

NEVER, ALL_FLOAT, FRESH = Fails.NEVER, Fails.UNLESS_ALL_FLOAT, Gives.FRESH
ONE, TWO, TWO_TENSORS = LooksLike.ONE, LooksLike.TWO, LooksLike.TWO_TENSORS

ROWS = (
    # Functions of a number.
    row("abs neg reciprocal rsqrt sqrt square", fails=NEVER, gives=FRESH, looks_like=ONE),
    row("exp log", fails=NEVER, gives=FRESH, looks_like=ONE, takes_long=True),
    row("cos erf expm1 log1p log2 sigmoid sin tan tanh", fails=NEVER, looks_like=ONE, takes_long=True),
    row("acos asin atan cosh log10 sinh", fails=NEVER, takes_long=True),
    row("acosh asinh atanh digamma erfc erfinv exp2 lgamma", takes_long=True),
    row("ceil floor relu trunc", fails=NEVER, looks_like=ONE),
    row("round", fails=NEVER, looks_like=ONE, primitive="rint"),
    row("sign", fails=NEVER, gives=FRESH),
    row("sgn", primitive="sign"),
    row("special_entr", primitive="entr"),
    row("isfinite", fails=NEVER, says=Says.YES),
    row("isinf isnan", fails=NEVER, says=Says.NO),
    row("isneginf isposinf", says=Says.NO),
    row("logical_not", fails=NEVER, says=Says.THE_OPPOSITE),
    row("bitwise_not", says=Says.THE_OPPOSITE),
    row("logical_and logical_or", says=Says.THE_SAME),
    row("pos", fails=NEVER, gives=Gives.VIEW),
    row("nan_to_num", fails=NEVER, takes_numbers=True),
    row("ceil erf floor ge gt le lt maximum minimum relu round sign trunc", of_reals=True),
    row("abs ceil erf floor neg relu round sub rsub trunc", of_numbers=True),
    # Functions of two.
    row("add sub", fails=NEVER, gives=FRESH, takes_numbers=True, looks_like=TWO, factor="alpha"),
    row("mul div truediv", fails=NEVER, gives=FRESH, looks_like=TWO),
    row("true_divide", fails=NEVER, looks_like=TWO),
    row("rsub eq ge gt le lt ne", fails=NEVER, gives=FRESH, takes_numbers=True),
    row("maximum minimum", fails=NEVER, gives=FRESH, looks_like=TWO_TENSORS),
    row("logical_and logical_or", fails=NEVER),
    row("pow", fails=Fails.UNLESS_ANY_FLOAT, gives=FRESH, takes_long=True),  # no whole number has a negative power
    row("atan2 hypot logaddexp xlogy", takes_long=True),
    row("special_xlog1py", primitive="xlog1py"),
    row("heaviside", of_one_dtype=(0, 1)),
    row("add sub subtract mul multiply pow remainder floor_divide fmod", promotes=True),
    row("atan2 copysign float_power hypot ldexp xlogy", promotes=True),
    row("addcdiv addcmul clamp clamp_max clamp_min clip lerp", promotes=True),
    # Of three, and choices.
    row("lerp", fails=ALL_FLOAT, gives=FRESH, takes_numbers=True),
    row("addcmul", fails=ALL_FLOAT, gives=FRESH, takes_numbers=True, factor="value"),
    row("addcdiv", fails=ALL_FLOAT, gives=FRESH, takes_numbers=True, factor="value", of_one_dtype=(0, 1, 2)),
    row("clamp", fails=NEVER, takes_numbers=True, looks_like=LooksLike.FIRST),
    row("clip", fails=NEVER, takes_numbers=True),
    row("masked_fill", fails=NEVER, takes_numbers=True, copies_first=True),
    row("where", fails=NEVER, gives=FRESH, takes_numbers=True),
    row("clamp clip", of_reals=True),
    # Activations.
    row("gelu selu silu softplus", fails=ALL_FLOAT, looks_like=ONE, takes_long=True),
    row("elu", fails=ALL_FLOAT, takes_numbers=True, looks_like=ONE, takes_long=True),
    row("celu", fails=ALL_FLOAT, takes_numbers=True, takes_long=True),
    row("hardtanh leaky_relu", fails=ALL_FLOAT, takes_numbers=True, looks_like=ONE),
    row("threshold _threshold", takes_numbers=True),  # the second is that of torch.nn
    row("mish", fails=ALL_FLOAT, takes_long=True),
    row("log_sigmoid_forward", takes_long=True),
    row("hardsigmoid hardswish logsigmoid relu6 softsign tanhshrink", fails=ALL_FLOAT),
    row("_conj_physical", meta_is_wrong=True),
)
