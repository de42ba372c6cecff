"""Every way to call PyTorch, where a function mode or a tensor class overrides them: it is told what eager tells it."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import bothways

SEEN = []


def note(func, types, args, kwargs):
    SEEN.append((getattr(func, "__name__", ""), len(args), sorted(kwargs or {}), types))


class Meddling(TorchFunctionMode):
    """Changes arguments, results, and calls operations that it then sees itself."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        note(func, types, args, kwargs)
        if func is torch.cat:
            args = (list(args[0])[::-1], *args[1:])
        if func is F.dropout:
            kwargs["p"] = 0.0
        if func is torch.Tensor.sum:
            return torch.zeros(()) + 5
        result = func(*args, **kwargs)
        if func is torch.sin:
            with self:
                result = torch.cos(result)
        return result


class Noting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        note(func, types, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)


torch.manual_seed(0)
linear, norm, embedding = torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Embedding(4, 3)
attention, lstm = torch.nn.MultiheadAttention(4, 2, batch_first=True), torch.nn.LSTM(3, 3, batch_first=True)
weight = torch.nn.Parameter(torch.randn(3))


def stores(x):
    x = x.clone()
    x[0] = 1
    x[1, 1:] = x[0, 1:]
    x.note = 3
    return x, x.note


def in_place(x):
    x = x.clone()
    x += 1
    x *= 2
    x -= x.mean()
    x /= 2
    x **= 2
    return x.add_(1)


def unpacks(x):
    first, second, third = x
    return first + second + third, [row * 2 for row in x]


def grad_modes(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        return y + x * weight


def casts(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


CASES = {
    "lists": lambda x: (torch.cat([x, x + 1], 0), torch.stack([x, x]), torch.broadcast_tensors(x, x[0])),
    "dropout": lambda x: F.dropout(x, 0.0, training=True),
    "sums": lambda x: x.sum() + x.sum(0).mean() + torch.sum(input=x, dim=0),
    "sin": lambda x: torch.sin(x) * 2,
    "layers": lambda x: (norm(linear(x)), embedding(torch.tensor([0, 1])), lstm(x[None])[0]),
    "attention": lambda x: attention(*[torch.ones(1, 2, 4)] * 3)[0] + x[0, 0],
    "subscripts": lambda x: (x[0], x[:, 1:], x[..., None], x[torch.tensor([0])]),
    "stores": stores,
    "comparisons": lambda x: ((x > 0).float(), x == x, x != 1, x is None),
    "operators": lambda x: (x**2, 2**x, 1 / x, x // 2, 7 // x, x % 3, abs(x), ~(x > 0), -x, +x, x @ x, 3 - x),
    "in place": in_place,
    "attributes": lambda x: (x.T, x.mT, x.shape, x.ndim, x.dtype, x.device, x.requires_grad, x.is_leaf, x.grad, x.data),
    "queries": lambda x: (x.size(), x.size(0), x.dim(), x.numel(), x.stride(), x.is_contiguous(), len(x)),
    "methods": lambda x: (x.view(-1), x.t(), x.max(), x.max(0), x.split(1), x.chunk(3), x.unbind(0), x.norm()),
    "conversions": lambda x: (x.type(torch.float64), x.new_zeros(2), x.to(torch.float64), x.contiguous(), x.int()),
    "factories": lambda x: (torch.zeros(2), torch.arange(3), torch.tensor([1.0, 2.0]), torch.ones_like(x)),
    "functional": lambda x: (F.relu(x), F.softmax(x, -1), F.gelu(x), F.layer_norm(x, (3,)), F.pad(x, (1, 1))),
    "choices": lambda x: (F.max_pool1d(x[None], 2), F.interpolate(x[None], scale_factor=2.0), F.normalize(x)),
    "functions": lambda x: (torch.einsum("ij,jk->ik", x, x), torch.split(x, 2), torch.where(x > 0, x, 0.0)),
    "namespaces": lambda x: (torch.linalg.norm(x), torch.fft.fft(x).real, torch.add(x, x, alpha=2)),
    "operations": lambda x: (torch.ops.aten.add(x, 1), torch.ops.aten.mul.Tensor(x, x)),
    "unpacked": unpacks,
    "grad modes": grad_modes,
    "autocast": casts,
}  # fmt: skip


def shown(result):
    if isinstance(result, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return type(result), result.dtype, result.requires_grad, dict(result.__dict__)
    return [shown(item) for item in result] if isinstance(result, (tuple, list)) else result


def tensors(result):
    if isinstance(result, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return [result.as_subclass(torch.Tensor)]
    return [tensor for item in result for tensor in tensors(item)] if isinstance(result, (tuple, list)) else []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("overridden_by", ["mode", "class"])
@pytest.mark.parametrize("name", CASES)
def test_handlers_are_told_what_eager_tells_them(name, overridden_by, backend):
    function = CASES[name]
    x = torch.arange(9.0).reshape(3, 3) + 1

    def run(target):
        SEEN.clear()
        if overridden_by == "class":
            result = target(x.as_subclass(Noting))
        else:
            with Meddling():
                result = target(x)
        return result, list(SEEN)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, told = run(function)
        actual, told_compiled = run(compiled)
        assert told_compiled == told and shown(actual) == shown(expected)
        torch.testing.assert_close(tensors(actual), tensors(expected))
