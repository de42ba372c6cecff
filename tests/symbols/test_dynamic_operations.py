"""Programs of operations that sizes used to be frozen by: one program for the first sizes, one for all others.

Results, gradients and mutations are eager's on each backend, with each of the sizes.
"""


import pytest
import torch
import torch.nn.functional as F
from fake_checking import describe
from pythons import run_python
from sizing import BACKENDS, agree

import bothways
from bothways.capture.shapes.outlines import OUTLINES, scaled
from bothways.fake import NotThin, ThinMode, thin_like
from bothways.torch_compat import tree_map_only

STEPS = range(4)


def floats(*shape):
    return torch.randn(*shape, requires_grad=True)


def places(*shape, below=2):
    return torch.randint(below, shape)


LSTM, GRU = torch.nn.LSTM(4, 8, batch_first=True), torch.nn.GRU(4, 8, bidirectional=True)
RNN = torch.nn.RNN(4, 8, num_layers=2)

# name -> a program, and its arguments for each step
PROGRAMS = {
    # Graph networks and ragged text.
    "scatter_reduce": (
        lambda x, i: torch.zeros(2, x.shape[1]).scatter_reduce(0, i, x.sin(), "amax", include_self=False).cos(),
        lambda n: (floats(5 + n, 3), places(5 + n, 3)),
    ),
    "scatter_reduce_": (
        lambda x, i: torch.zeros(2, x.shape[1]).scatter_reduce_(0, i, x.sin(), "mean").cos(),
        lambda n: (floats(5 + n, 3), places(5 + n, 3)),
    ),
    "index_copy_": (
        lambda x, i: torch.zeros(9, x.shape[1]).index_copy_(0, i, x.sin()).cos(),
        lambda n: (floats(5 + n, 3), torch.randperm(9)[: 5 + n]),
    ),
    "masked_scatter": (
        lambda x, y: x.sin().masked_scatter(x > 0, y).cos(),
        lambda n: (floats(5 + n, 3), floats(5 + n, 3)),
    ),
    "lstm": (lambda x: LSTM(x.sin())[0].cos(), lambda n: (floats(3 + n, 5 + n, 4),)),
    "gru": (lambda x: GRU(x.sin())[0].cos(), lambda n: (floats(3 + n, 5 + n, 4),)),
    "rnn": (lambda x: RNN(x.sin())[0].cos(), lambda n: (floats(3 + n, 5 + n, 4),)),
    "chunk": (lambda x: torch.cat(x.sin().chunk(2)[::-1]) * 2, lambda n: (floats(6 + n, 4),)),
    "split": (lambda x: torch.stack([part.sum() for part in x.sin().split(4)]), lambda n: (floats(9 + n, 4),)),
    # Images and waves.
    "interpolate by a scale": (
        lambda x: F.interpolate(x.sin(), scale_factor=2.0, mode="bilinear").cos(),
        lambda n: (floats(1, 2, 3 + n, 4 + n),),
    ),
    "interpolate to a size": (
        lambda x: F.interpolate(x.sin(), size=(x.shape[2] * 2, x.shape[3])).cos(),
        lambda n: (floats(1, 2, 3 + n, 4 + n),),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x.sin(), 2).cos(), lambda n: (floats(2, 3, 6 + n),)),
    "reflect": (lambda x: F.pad(x.sin(), (1, 1, 2, 1), mode="reflect").cos(), lambda n: (floats(2, 3, 5 + n, 4 + n),)),
    "grid_sample": (
        lambda x, g: F.grid_sample(x.sin(), g.tanh(), align_corners=False).cos(),
        lambda n: (floats(2, 3, 5 + n, 4), floats(2, 3 + n, 6, 2)),
    ),
    "stft": (
        lambda x: torch.stft(x, 16, window=torch.ones(16), return_complex=True).abs(),
        lambda n: (floats(50 + n),),
    ),
    "fft": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1]).sin(),
        lambda n: (floats(5 + n, 8 + 2 * n),),
    ),
    # Numbers.
    "kron": (lambda x, y: torch.kron(x.sin(), y).cos(), lambda n: (floats(3 + n, 4), floats(2, 3 + n))),
    "take_along_dim": (
        lambda x, i: torch.take_along_dim(x.sin(), i, 1) * 2,
        lambda n: (floats(3 + n, 4), places(3 + n, 2)),
    ),
    "cdist": (lambda x, y: torch.cdist(x.sin(), y).cos(), lambda n: (floats(4 + n, 3), floats(5 + n, 3))),
    "cumprod": (lambda x: (x.sin().cumprod(0) * 2).sum(1), lambda n: (floats(5 + n, 4),)),
    "median": (lambda x: x.sin().median(0).values * 2, lambda n: (floats(5 + n, 4),)),
    "linspace": (lambda x: x.sin() * torch.linspace(0, 1, x.shape[0])[:, None], lambda n: (floats(6 + n, 4),)),
    "bucketize": (
        lambda x, edges: torch.bucketize(x.sin(), edges) * 2,
        lambda n: (torch.randn(5 + n, 4), torch.linspace(-1, 1, 3 + n)),
    ),
    "cholesky": (
        lambda x: torch.linalg.cholesky(x @ x.T + 10 * torch.eye(x.shape[0])).exp(),
        lambda n: (floats(3 + n, 4),),
    ),
    "multi_dot": (
        lambda x, y, z: torch.linalg.multi_dot([x.sin(), y, z]).cos(),
        lambda n: (floats(6 + n, 4), floats(4, 5), floats(5, 3)),
    ),
    "complex": (lambda x: torch.view_as_complex(x.sin()).abs() * 2, lambda n: (floats(5 + n, 2),)),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_all_sizes(name, backend):
    function, arguments = PROGRAMS[name]
    agree(function, [arguments(n) for n in STEPS], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_those_of_eager(backend):
    def draw(x):
        return torch.multinomial(x.abs() + 0.1, 2) * 2

    compiled = bothways.compile(draw, backend=backend)
    for n in STEPS:
        x = torch.rand(4 + n, 5 + n)
        torch.manual_seed(n)
        expected = draw(x)
        torch.manual_seed(n)
        assert torch.equal(compiled(x), expected)
    assert len(bothways.history(compiled)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_a_size_that_changed_is_eagers(backend):
    def program(x, i):
        return torch.zeros(2, 3).scatter_reduce(0, i, x, "sum")

    compiled = bothways.compile(program, backend=backend)
    for n in STEPS:
        compiled(torch.randn(4 + n, 3), places(4 + n, 3))
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(torch.randn(9, 3), torch.full((9, 3), 7))
    with pytest.raises(RuntimeError, match="to be no larger"):
        compiled(torch.randn(9, 3), places(10, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_number_of_parts_decides_and_their_lengths_do_not(backend):
    calls = [(floats(size, 3),) for size in (5, 6, 8, 9, 11, 12, 6)]
    agree(lambda x: [part.sin() for part in x.split(3)], calls, backend, programs=4)


# Outlines ----------------------------------------------------------------------------------------------------

ROWS = [
    (torch.kron, (torch.randn(2, 3), torch.randn(4))),
    (torch.kron, (torch.randn(3), torch.randn(2, 4, 5))),
    (torch.take_along_dim, (torch.randn(4, 5), places(4, 2), 1)),
    (torch.take_along_dim, (torch.randn(4, 1), places(1, 3), 0)),
    (torch.take_along_dim, (torch.randn(4, 5), places(6))),
    (torch.block_diag, (torch.randn(2, 3), torch.randn(4), torch.randn(3, 1))),
    (torch.linalg.multi_dot, ([torch.randn(4), torch.randn(4, 5), torch.randn(5, 3)],)),
    (torch.linalg.multi_dot, ([torch.randn(4), torch.randn(4, 5), torch.randn(5)],)),
    (torch.gradient, (torch.randn(5, 4),)),
    (F.bilinear, (torch.randn(5, 2, 4), torch.randn(5, 2, 3), torch.randn(6, 4, 3), torch.randn(6))),
    (torch.linalg.pinv, (torch.randn(2, 5, 4),)),
    (torch.pinverse, (torch.randn(4, 5),)),
    (F.interpolate, (torch.randn(1, 2, 5),), {"scale_factor": 1.5, "mode": "linear"}),
    (F.interpolate, (torch.randn(1, 2, 5, 7),), {"scale_factor": (0.5, 0.75)}),
    (F.interpolate, (torch.randn(1, 2, 5, 7),), {"size": (3, 9), "mode": "bicubic"}),
    (F.interpolate, (torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),), {"scale_factor": 2}),
    (F.interpolate, (torch.randn(1, 2, 5, 7, 4),), {"size": 6, "mode": "trilinear"}),
    (F.interpolate, (torch.randn(1, 2, 5, 7, 4),), {"size": 6, "mode": "nearest-exact"}),
    (F.max_pool1d, (torch.randn(2, 3, 9), 2)),
    (F.max_pool1d, (torch.randn(3, 9), 3), {"stride": 2, "padding": 1, "ceil_mode": True}),
    (torch.max_pool1d, (torch.randn(2, 3, 9), 2, 1, 0, 2)),
    (F.upsample, (torch.randn(1, 2, 5, 7),), {"scale_factor": 2}),
    (F.upsample_nearest, (torch.randn(1, 2, 5, 7),), {"scale_factor": 2}),
    (F.upsample_bilinear, (torch.randn(1, 2, 5, 7),), {"size": (4, 4)}),
    (torch.stft, (torch.randn(50), 16), {"window": torch.ones(16), "return_complex": True}),
    (torch.stft, (torch.randn(3, 50), 16, 5), {"window": torch.ones(16), "return_complex": True, "center": False}),
    (torch.stft, (torch.randn(50), 16), {"window": torch.ones(16), "return_complex": True, "onesided": False}),
    (torch.linspace, (0, 1, 5)),
    (torch.linspace, (0, 1, 5), {"dtype": torch.float64}),
    (torch.logspace, (0, 1, 5)),
    (torch.hann_window, (5,)),
    (torch.hamming_window, (5, False)),
    (torch.blackman_window, (5,), {"dtype": torch.float64}),
    (torch.bartlett_window, (5,)),
    (torch.vander, (torch.randn(5),)),
    (torch.linalg.vander, (torch.randn(2, 5),), {"N": 3}),
    *(
        (layer, (torch.randn(5, 3, 4), state, list(module._flat_weights), *options))
        for layer, module, state, options in (
            (torch._VF.lstm, LSTM, (torch.randn(1, 5, 8), torch.randn(1, 5, 8)), (True, 1, 0.0, True, False, True)),
            (torch._VF.lstm, LSTM, (torch.randn(1, 3, 8), torch.randn(1, 3, 8)), (True, 1, 0.0, False, False, False)),
            (torch._VF.gru, GRU, torch.randn(2, 3, 8), (True, 1, 0.0, False, True, False)),
            (torch._VF.rnn_tanh, RNN, torch.randn(2, 3, 8), (True, 2, 0.0, False, False, False)),
            (torch._VF.rnn_relu, RNN, torch.randn(2, 5, 8), (True, 2, 0.0, False, False, True)),
        )
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].__name__)
@pytest.mark.filterwarnings("ignore")
def test_an_outline_is_laid_out_like_the_result(row):
    function, args, kwargs = row if len(row) == 3 else (*row, {})
    thin_args, thin_kwargs = tree_map_only(torch.Tensor, lambda one: thin_like(one.detach()), (args, kwargs))
    with ThinMode():
        found = OUTLINES[function](*thin_args, **thin_kwargs)
    expected = function(*args, **kwargs)
    assert [fact[:2] for fact in described(found)] == [fact[:2] for fact in described(expected)]
    assert [fact[3] for fact in described(found)] == [fact[3] for fact in described(expected)]


def described(tree):
    """Sizes, strides and dtype; where there is one element along a dimension, its stride says nothing."""
    facts = describe(tree)
    return [
        (shape, tuple(step for size, step in zip(shape, stride, strict=True) if size > 1), *rest)
        for shape, stride, *rest in facts
    ]


def test_every_outline_is_checked():
    methods = {torch.Tensor.kron, torch.Tensor.take_along_dim, torch.Tensor.stft, F.one_hot}
    assert set(OUTLINES) - methods == {row[0] for row in ROWS}


@pytest.mark.parametrize("factor", [2, 2.0, 0.5, 1.5, 0.25, 3])
def test_a_scale_is_a_fraction_where_that_is_exact(factor):
    for size in range(1, 200):
        assert scaled(size, factor) == int(size * float(factor))


def test_a_scale_that_rounds_is_left_to_pytorch():
    with pytest.raises(NotThin):
        scaled(10, 0.7)  # 7 elements, where seven tenths of ten are a little less than 7
    calls = [(torch.randn(1, 2, 10 + n),) for n in STEPS]
    agree(lambda x: F.interpolate(x, scale_factor=0.7), calls, "eager", programs=4)


# What is loaded ----------------------------------------------------------------------------------------------

FIRST_USE = """
import sys
import torch
import bothways

def program(x, i):
    pooled = torch.zeros(2, 3).scatter_reduce(0, i, x, "amax") + torch.logcumsumexp(x, 0)[:2]
    return pooled.sum() + torch.special.airy_ai(x.detach()).sum() + torch.linalg.inv(x[:3, :3]).sum()

compiled = bothways.compile(program, backend=sys.argv[1])
for n in range(3):
    x = torch.randn(4 + n, 3, requires_grad=True)
    compiled(x, torch.zeros(4 + n, 3, dtype=torch.int64)).backward()
assert len(bothways.history(compiled)) == 2
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_operations_without_a_rule_do_not_load_pytorchs_compiler(backend):
    done = run_python(["-c", FIRST_USE, backend], check=True)
    assert done.stdout.strip() == "[]"
