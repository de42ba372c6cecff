"""Thin tensors behave like tensors as long as their elements are not asked for."""

import textwrap

import pytest
import torch
from pythons import run_python

from bothways import torch_compat
from bothways.fake import NeedsData, NotThin, SizedByData, ThinMode, ThinTensor, thin_like


def thin(*shape, **options):
    return thin_like(torch.zeros(*shape, **options))


def memory(tensor):
    return torch_compat.storage_identity(tensor)


def test_a_thin_tensor_has_everything_but_elements():
    x = thin_like(torch.zeros(3, 4, dtype=torch.float64).t())
    assert (x.shape, x.stride(), x.dtype, x.device) == ((4, 3), (1, 4), torch.float64, torch.device("cpu"))
    assert torch_compat.is_fake(x)
    with pytest.raises(NeedsData):
        thin(1).item()
    with pytest.raises(RuntimeError):
        x.tolist()


@pytest.mark.parametrize("name", ["_unique", "_unique2", "nonzero", "unique_consecutive", "bincount"])
def test_how_much_data_give_is_not_guessed(name):
    """PyTorch's own fakes of torch 2.11 say that a tensor has one element that is unique."""
    with pytest.raises(SizedByData):
        getattr(torch.ops.aten, name).default(thin(5, dtype=torch.int64))


def test_operations_give_thin_tensors():
    result = (thin(3, 4) @ thin(4, 5)).relu().sum(0, keepdim=True)
    assert type(result) is ThinTensor and result.shape == (1, 5)


def test_a_real_tensor_among_them_is_a_constant():
    assert (thin(3, 4) + torch.ones(4)).shape == (3, 4)
    with pytest.raises(NotThin):
        thin(3, 4) + torch.ones(4, requires_grad=True)


def test_factories_make_thin_tensors_inside_the_mode():
    with ThinMode():
        made = [torch.zeros(1 << 60), torch.full((2,), True), torch.arange(0, 1, 0.3), torch.tensor([1, 2])]
    assert all(type(one) is ThinTensor for one in made)
    assert [one.dtype for one in made] == [torch.float32, torch.bool, torch.float32, torch.int64]
    assert type(torch.zeros(2)) is torch.Tensor


def test_a_device_is_claimed_without_being_there():
    x = thin(2, 3).to("meta")
    assert x.device.type == "meta" and (x + 1).device.type == "meta"
    with ThinMode():
        assert torch.ones(2, device="meta").device.type == "meta"


def test_views_share_memory_and_copies_do_not():
    x = thin(4, 6)
    views = [x.view(6, 4), x[1:3], x.t(), x.unsqueeze(0), x.detach(), x.split(2)[1], x[0], x.expand(2, 4, 6)]
    assert {memory(view) for view in views} == {memory(x)}
    assert memory(x.clone()) != memory(x) != memory(x + 1)
    assert x[2:].storage_offset() == 12 and x[2:].view(-1)[1:].storage_offset() == 13


def test_tensors_that_share_memory_share_it_as_thin_ones():
    base = torch.zeros(4)
    mode = ThinMode()
    x, y, z = mode.from_tensor(base[:2]), mode.from_tensor(base[2:]), mode.from_tensor(torch.zeros(4))
    assert memory(x) == memory(y) != memory(z)


def test_a_window_has_to_fit_into_the_memory():
    x = thin_like(torch.zeros(10)[2:4])
    assert x.as_strided((8,), (1,)).shape == (8,)
    with pytest.raises(NotThin):
        x.as_strided((9,), (1,))


def test_in_place_operations_return_their_argument():
    x = thin(2, 3)
    assert x.add_(1) is x and x.mul_(thin(3)) is x and x.zero_() is x
    assert x.t_() is x and x.shape == (3, 2) and x.stride() == (1, 3)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(thin(5, 3, 2))
    with pytest.raises(NotThin):
        thin(2, dtype=torch.long).add_(0.5)
    with pytest.raises(NotThin):
        thin(1).expand(3).add_(1)


def test_out_is_written_where_it_fits():
    out = thin(2, 3)
    assert torch.add(thin(2, 3), 1, out=out) is out
    with pytest.raises(NotThin):
        torch.add(thin(2, 3), 1, out=thin(7))


def test_autograd_sees_thin_tensors():
    weight, x = thin(3, 3).requires_grad_(), thin(2, 3)
    loss = (x @ weight).tanh().sum()
    assert loss.requires_grad and not loss.is_leaf and loss.grad_fn.name() == "SumBackward0"
    (gradient,) = torch_compat.gradients([loss], [weight], [thin_like(torch.ones(()))])
    assert type(gradient) is ThinTensor and gradient.shape == (3, 3)
    with pytest.raises(RuntimeError, match="leaf"):
        weight.add_(1)
    x.add_(weight.sum())
    assert x.requires_grad


def test_inference_mode_takes_composite_operations_apart():
    with torch.inference_mode():
        assert torch.nn.functional.linear(thin(2, 3), thin(4, 3), thin(4)).shape == (2, 4)


@pytest.mark.parametrize(
    "operation",
    [torch.nonzero, torch.unique, lambda x: x[x > 0], lambda x: bool(x.sum() > 0), lambda x: x.equal(x)],
)
def test_what_depends_on_elements_is_declined(operation):
    with pytest.raises(NeedsData):
        operation(thin(2, 3))


@pytest.mark.parametrize(
    "operation",
    [
        lambda: thin(2, 3) + thin(4),
        lambda: thin(2, 3) @ thin(2, 3),
        lambda: thin(2, 3).view(5),
        lambda: -thin(2, dtype=torch.bool),
        lambda: thin(2, 3).sum(5),
        lambda: thin(2, dtype=torch.complex64).sin(),
        lambda: torch.geqrf(thin(2, 2)),
        lambda: thin_like(torch.zeros(2, 2).to_sparse()),
    ],
)
def test_what_is_not_known_is_declined(operation):
    with pytest.raises(NotThin):
        operation()


def test_training_does_not_load_pytorchs_compiler():
    program = """
        import sys

        import torch
        import torch.nn.functional as F
        from torch import nn

        import bothways

        class Transformer(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(20, 16)
                self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
                self.head = nn.Linear(16, 20)

            def forward(self, tokens):
                return self.head(self.layer(self.embedding(tokens))).mean(1)

        convolutions = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(),
            nn.Linear(36, 20),
        )
        before = {"torch._dynamo", "sympy"} & set(sys.modules)
        for model, x in ((Transformer(), torch.zeros(2, 5, dtype=torch.long)), (convolutions, torch.randn(2, 3, 8, 8))):
            compiled = bothways.compile(model, backend="aot_eager", fullgraph=True)
            for _ in range(2):
                F.cross_entropy(compiled(x), torch.tensor([1, 2])).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
        print(sorted({"torch._dynamo", "sympy"} & set(sys.modules) - before))
    """
    done = run_python(["-c", textwrap.dedent(program)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@torch.library.custom_op("bothways_tests::refusing_its_arguments", mutates_args=())
def refusing_its_arguments(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@refusing_its_arguments.register_fake
def _(x):
    raise TypeError("not these")


def test_what_an_operation_refuses_is_not_written_into_the_log(caplog):
    with torch_compat.fake_tensor_mode(), pytest.raises(TypeError, match="not these"):
        torch.ops.bothways_tests.refusing_its_arguments(torch.empty(3))
    assert caplog.records == []
