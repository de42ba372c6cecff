"""Tensors made on another device than the inputs', or in another layout, inside a compiled function."""

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.testing import same

pytestmark = pytest.mark.usefixtures("kernels_for_all")

BACKENDS = ["eager", "aot_eager", "native"]
ELSEWHERE = [
    "meta",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def default_device(x, device):
    with torch.device(device):
        made = torch.ones(3)
    return made * 2 + 1, (x * 2).sin()


# None of these reads data on the other device, which "meta" does not have.
PROGRAMS = {
    "moved": lambda x, device: (x * 2).sin().to(device) + 1,
    "moved among others": lambda x, device: ((x * 2).sin(), (x + 1).to(device).sin() * 2),
    "moved to another dtype as well": lambda x, device: (x.sin() + 1).to(device=device, dtype=torch.float16) * 2,
    "made": lambda x, device: (torch.ones(3, device=device) * 2 + 1, (x * 2).sin()),
    "made, and nothing else": lambda x, device: torch.ones(3, device=device).sin() * 2 + 1,
    "made by a method": lambda x, device: (x.new_ones(3, device=device).sin() + 1, x * 2 + 1),
    "made alike": lambda x, device: (torch.zeros_like(x, device=device) + 1, x.sin() * 2),
    "made by a default": default_device,
    "with a scalar of the CPU": lambda x, device: torch.ones(3, device=device) * x.sum() + 1,
    "with a constant of the CPU": lambda x, device: torch.ones(3, device=device) * torch.tensor(2.0) + 1,
    "indexed from the CPU": lambda x, device: torch.ones(8, 8, device=device)[torch.tensor([1, 2])] + 1,
    "joined": lambda x, device: torch.cat([x.to(device) * 2, torch.ones(8, 8, device=device)]) + 1,
    "copied over": lambda x, device: x.new_empty(8, 8, device=device).copy_(x * 2 + 1) + 1,
    "chosen": lambda x, device: torch.where(torch.ones(8, device=device) > 0, 1.0, 2.0) + 1,
    "a scalar that moves": lambda x, device: (x.sum().to(device) * 2 + 1, x * 2 + 1),
    "only its size is used": lambda x, device: x.to(device).sum(0).shape[0] + x * 2,
}


def outline(value):
    if isinstance(value, tuple):
        return [outline(item) for item in value]
    if value.device.type == "meta" or value.layout is not torch.strided:
        return value.device, value.layout, value.dtype, tuple(value.shape), value.requires_grad
    return value.device, value.requires_grad, value.detach().cpu()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("device", ELSEWHERE)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tensor_on_another_device(name, backend, device):
    compiled = bothways.compile(PROGRAMS[name], backend=backend)
    for x in (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8).double(), torch.randn(8, 8, requires_grad=True)):
        assert same(outline(compiled(x, device)), outline(PROGRAMS[name](x, device)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_default_device_of_the_process_makes_tensors_elsewhere(backend):
    def plain(x):
        return torch.ones(3) * 2 + 1, (x * 2).sin()

    compiled = bothways.compile(plain, backend=backend)
    x = torch.randn(8, 8)
    assert same(outline(compiled(x)), outline(plain(x)))
    torch.set_default_device("meta")
    try:
        found, expected = compiled(x), plain(x)
    finally:
        torch.set_default_device(None)
    assert same(outline(found), outline(expected))
    assert found[0].device.type == "meta"
    assert same(outline(compiled(x)), outline(plain(x)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_held_on_another_device(backend):
    layer = torch.nn.Linear(8, 3, device="meta")

    def plain(x):
        return layer(x.to("meta")).relu(), x * 2 + 1

    x = torch.randn(8, 8)
    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        assert same(outline(compiled(x)), outline(plain(x)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_devices_that_do_not_meet_are_an_error_as_in_eager(backend):
    def plain(x):
        return torch.ones(8, device="meta") + x * 2

    x = torch.randn(8)
    with pytest.raises(RuntimeError) as expected:
        plain(x)
    with pytest.raises(RuntimeError) as found:
        bothways.compile(plain, backend=backend)(x)
    assert str(found.value) == str(expected.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_come_back_from_another_device(backend):
    def plain(x, weight):
        hidden = (x * 2).sin().cuda()
        return (hidden @ weight).relu().cpu().exp() + x

    def gradients(function):
        torch.manual_seed(0)
        x, weight = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, device="cuda", requires_grad=True)
        result = function(x, weight)
        result.sum().backward()
        return result.detach(), x.grad, weight.grad.cpu()

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        for found, expected in zip(gradients(compiled), gradients(plain), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_of_two_devices(backend):
    def plain(x, y):
        return (x * 2 + 1).sin(), (y * 2 + 1).sin(), y * x.sum()

    x, y = torch.randn(8), torch.randn(8, device="cuda")
    compiled = bothways.compile(plain, backend=backend)
    for given in ((x, y), (x, y), (y, x[:1].cuda()), (x, x)):
        for found, expected in zip(compiled(*given), plain(*given), strict=True):
            assert found.device == expected.device
            torch.testing.assert_close(found, expected)


# Other layouts.

LAYOUTS = {
    "sparse": lambda x: (x * 2).relu().to_sparse(),
    "sparse and back": lambda x: (x * 2).relu().to_sparse().to_dense() * 2 + 1,
    "compressed": lambda x: (x * 2).relu().to_sparse_csr().to_dense() + 1,
    "a sparse product": lambda x: torch.sparse.mm((x * 2).relu().to_sparse(), x) * 2,
    "made of indices": lambda x: torch.sparse_coo_tensor(torch.eye(2).long(), (x * 2)[0, :2], (2, 2)).to_dense() + 1,
    "for oneDNN": lambda x: (x * 2).to_mkldnn().relu().to_dense() + 1,
    "nested": lambda x: torch.nested.to_padded_tensor(torch.nested.as_nested_tensor([x * 2, x + 1]) * 2, 0.0) + 1,
    "quantized": lambda x: torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8).dequantize() * 2 + 1,
}


@pytest.mark.in_turn("backend")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_of_another_layout(name, backend):
    compiled = bothways.compile(LAYOUTS[name], backend=backend)
    for x in (torch.randn(8, 8), torch.randn(8, 8), torch.randn(4, 4)):
        assert same(outline(compiled(x)), outline(LAYOUTS[name](x)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
def test_code_that_asks_for_the_layout_is_told_the_truth(backend):
    def plain(x):
        made = [x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn(), x]
        return [(tensor.layout, tensor.is_sparse, tensor.is_mkldnn) for tensor in made], x * 2 + 1

    compiled = bothways.compile(plain, backend=backend)
    x = torch.randn(8, 8)
    for _ in range(2):
        assert same(compiled(x), plain(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_old_fashioned_type_of_another_device(backend):
    def plain(x):
        return (x * 2).type("torch.cuda.DoubleTensor") + 1

    x = torch.randn(4)
    expected, found = plain(x), bothways.compile(plain, backend=backend)(x)
    assert found.device == expected.device and found.dtype is expected.dtype
    torch.testing.assert_close(found, expected)


def test_what_is_made_for_nobody_is_made_where_the_others_are():
    """With PyTorch's default type of tensors on a GPU, a call that says nothing makes a tensor there."""

    def normalised(x, mean, var, weight):
        return F.batch_norm(x, mean, var, weight, None, training=False)

    compiled = bothways.compile(normalised, backend="native", fullgraph=True)
    compiled(torch.randn(3, 3, 4), torch.zeros(3), torch.ones(3), torch.ones(3, requires_grad=True)).sum().backward()
    texts = [text for one in bothways.history(compiled)[0].generated for text in one.texts.values()]
    made = [line for text in texts for line in text.splitlines() if "at_empty_strided(" in line]
    assert made and all("device=" in line for line in made)
