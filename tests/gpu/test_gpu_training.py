"""Training on a GPU as people write it: other dtypes, autocast, GradScaler, optimizers; and the same at every run."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.testing import difference

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"]),
]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.first, self.norm, self.second = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, words, following):
        x = self.words(words)
        heads = x.view(*x.shape[:2], 4, -1).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.gelu(self.norm(self.first(x)))
        return F.cross_entropy(self.second(x).flatten(0, 1), following.flatten())


def models():
    torch.manual_seed(5)
    model = Model().cuda()
    return model, copy.deepcopy(model)


def words(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randint(0, 100, (4, 16), device="cuda", generator=generator) for _ in range(2)]


def losses(step, count=6):
    return [step(*words(seed)).item() for seed in range(count)]


def assert_alike(found, expected, rtol):
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_model_in_a_dtype(dtype, backend):
    def scene(model, run):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)

        def step(*data):
            optimizer.zero_grad()
            loss = run(*data)
            loss.backward()
            optimizer.step()
            return loss

        return losses(step)

    plain, other = (model.to(dtype) for model in models())
    rtol = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 2e-2)
    assert_alike(scene(other, bothways.compile(other, backend=backend)), scene(plain, plain), rtol)


def test_a_default_dtype_and_a_default_device(backend):
    def program(x):
        return x.sin() + torch.ones(3) * torch.rand(()).sign()

    compiled = bothways.compile(program, backend=backend)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cuda")
    try:
        x = torch.rand(3)
        for _ in range(2):
            assert difference(program(x), compiled(x)) is None
        assert compiled(x).dtype is torch.float64 and compiled(x).is_cuda
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inside", [False, True], ids=["around the call", "inside of the function"])
def test_autocast_with_a_grad_scaler(dtype, inside, backend):
    def scene(model, compiler):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_interval=3)

        def forward(*data):
            if not inside:
                return model(*data)
            with torch.autocast("cuda", dtype):
                return model(*data)

        run = compiler(forward)

        def step(*data):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype, enabled=not inside):
                loss = run(*data)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return [*losses(step), scaler.get_scale()]

    plain, other = models()
    expected = scene(plain, lambda function: function)
    assert_alike(scene(other, lambda function: bothways.compile(function, backend=backend)), expected, 2e-2)


def test_a_step_that_overflows_is_skipped_by_the_scaler(backend):
    model, other = models()
    for own, run in ((model, model), (other, bothways.compile(other, backend=backend))):
        optimizer = torch.optim.SGD(own.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**127)
        before = [parameter.detach().clone() for parameter in own.parameters()]
        scaler.scale(run(*words(0)) * 1e9).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0**126
        assert difference(before, [parameter.detach() for parameter in own.parameters()]) is None


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=lambda kind: kind.__name__)
def test_a_whole_step_with_its_optimizer(kind, options, backend):
    def scene(model, compiler):
        optimizer = kind(model.parameters(), lr=1e-2, **options)

        def step(*data):
            optimizer.zero_grad()
            loss = model(*data)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return losses(compiler(step))

    plain, other = models()
    expected = scene(plain, lambda step: step)
    assert_alike(scene(other, lambda step: bothways.compile(step, backend=backend)), expected, 1e-3)


def test_dropout_draws_what_eager_draws(backend):
    def program(x):
        return F.dropout(x * 2, 0.5).sin() + torch.rand_like(x)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x = torch.rand(1000, device="cuda", requires_grad=True)
    for _ in range(3):
        seen = []
        for function in (program, compiled):
            torch.manual_seed(11)
            x.grad = None
            result = function(x)
            result.sum().backward()
            seen.append((result, x.grad, torch.cuda.get_rng_state(), torch.rand(4, device="cuda")))
        assert difference(*seen) is None


def test_the_same_numbers_at_every_run(backend):
    model, _ = models()
    compiled = bothways.compile(model, backend=backend)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seen = []
        for _ in range(4):
            model.zero_grad()
            loss = compiled(*words(1))
            loss.backward()
            seen.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    finally:
        torch.use_deterministic_algorithms(False)
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


def test_tensors_of_a_gpu_and_of_the_cpu_do_not_mix_silently(backend):
    def program(x, y):
        return (x + 1).sin() * y

    compiled = bothways.compile(program, backend=backend)
    x, y = torch.rand(4, device="cuda"), torch.rand(4)
    compiled(x, y.cuda())
    with pytest.raises(RuntimeError, match="same device"):
        program(x, y)
    with pytest.raises(RuntimeError, match="same device"):
        compiled(x, y)
    assert difference(program(x, torch.tensor(2.0)), compiled(x, torch.tensor(2.0))) is None


def test_more_elements_than_32_bits_count(backend):
    def program(x):
        return (x + 1).relu_()

    if torch.cuda.get_device_properties(0).total_memory < 32 << 30:
        pytest.skip("a small GPU")
    x = torch.zeros((1 << 31) + 16, dtype=torch.int8, device="cuda")
    x[-1] = 5
    result = bothways.compile(program, backend=backend)(x)
    assert result[-1].item() == 6 and result[0].item() == 1 and result.sum(dtype=torch.int64).item() == x.numel() + 5
