"""Outputs that are views, inputs themselves, leaves, or laid out in an unusual way are eager's, compiled or not."""

import pytest
import torch
from observing import BACKENDS, agree, leaf, raised

import bothways
from bothways.testing import difference

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def test_views_of_an_input_wherever_it_lies_in_memory(backend):
    def scene(compiler):
        function = compiler(lambda x: (x.view(2, 3)[:, 1:].t(), x * 2))
        memory = leaf(20)
        seen = []
        for offset in (0, 3, 5):
            window, doubled = function(memory[offset : offset + 6])
            (window.sum() + doubled.sum()).backward()
            seen += [window, window.storage_offset(), doubled, memory.grad.clone()]
        return seen

    agree(scene, backend)


VIEWS = {
    "transposed": lambda x: x.t(),
    "a part": lambda x: x[1:, 2],
    "a diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.unfold(0, 2, 1),
    "strides": lambda x: x.as_strided((2, 2), (1, 2)),
    "rows": lambda x: x.unbind(0),
    "of a result": lambda x: (x * 2).split(2, 1),
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "bits": lambda x: x.view(torch.int32),
    "an imaginary part": lambda x: torch.complex(x, x).imag,
}


@pytest.mark.parametrize("name", VIEWS)
def test_gradients_through_views_are_laid_out_as_in_eager(backend, name):
    def scene(compiler):
        function = compiler(VIEWS[name])
        seen = []
        for _ in range(2):
            x = leaf(4, 6)
            results = function(x)
            for result in results if isinstance(results, tuple) else [results]:
                if result.requires_grad:
                    (result * torch.arange(result.numel()).view(result.shape)).abs().sum().backward(retain_graph=True)
                seen += [result, result._base is x]
            seen.append(x.grad)
        return seen

    agree(scene, backend)


def test_views_of_several_results_refuse_changes_as_in_eager(backend):
    def scene(compiler):
        first, _ = compiler(lambda x: (x * 2).chunk(2))(leaf(4))
        other, _ = compiler(lambda x: x.chunk(2))(leaf(4) * 1)
        return raised(first.add_, 1), raised(other.add_, 1)

    agree(scene, backend)


def test_views_taken_without_grad(backend):
    def program(x):
        y = x * 2
        with torch.no_grad():
            return x.view(-1), y.view(-1), y

    def scene(compiler):
        x = leaf(2, 3)
        results = compiler(program)(x)
        results[2].sum().backward()
        return results, x.grad

    agree(scene, backend)


def test_results_computed_without_grad_next_to_views_with_it(backend):
    def program(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
        return z, z[0], y[0], y

    def scene(compiler):
        x = leaf(2, 3)
        results = compiler(program)(x)
        results[3].sum().backward()
        return results, x.grad

    agree(scene, backend)


IDENTITIES = {
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32),
    "expand": lambda x: x.expand(3),
    "view": lambda x: x.view(3),
    "contiguous beside work": lambda x: (x.contiguous(), x * 2)[0],
    "dropout in evaluation": lambda x: torch.nn.functional.dropout(x, 0.5, False),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_returns_its_argument_returns_the_argument(backend, name):
    def scene(compiler):
        seen = []
        for x in (leaf(3), torch.randn(3)):
            result = compiler(IDENTITIES[name])(x)
            seen += [result, result is x, result._base is x]
        return seen

    agree(scene, backend)


def test_leaves_made_inside_get_gradients(backend):
    def program(x):
        weight = torch.zeros_like(x, requires_grad=True)
        bias = x.new_ones(3, requires_grad=True)
        return (x * weight + bias).sin().sum(), weight, bias

    def scene(compiler):
        function = compiler(program)
        seen = []
        for needed in (True, False):
            x = torch.randn(3, requires_grad=needed)
            loss, weight, bias = function(x)
            loss.backward()
            seen += [loss, weight, bias, weight.grad, bias.grad, x.grad]
        with torch.no_grad():
            return seen, function(x)

    agree(scene, backend)


IN_PLACE = {
    "masked_fill_": lambda v: v.masked_fill_(v.detach() > 0, 2.0),
    "tril_": lambda v: v.tril_(),
    "cumsum_": lambda v: v.cumsum_(0),
    "index_add_": lambda v: v.index_add_(0, torch.tensor([1]), torch.ones(1, 4)),
    "out": lambda v: torch.mul(v.detach(), 2, out=torch.empty(4, 6).t()),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_work_in_place_keeps_the_layout(backend, name):
    def program(x):
        turned = (x * 2).t()
        result = IN_PLACE[name](turned)
        return result, turned.sin()

    def scene(compiler):
        function = compiler(program)
        x = leaf(4, 6)
        results = function(x)
        results[1].sum().backward()
        return results, x.grad, function(torch.randn(4, 6))

    agree(scene, backend)


def test_a_loss_and_the_same_loss_detached(backend):
    def program(x):
        loss = x.sin().sum()
        return loss, loss.detach(), x.detach()

    def scene(compiler):
        x = leaf(3)
        loss, number, data = compiler(program)(x)
        loss.backward()
        number.add_(1)
        return loss, number, data, data.data_ptr() == x.data_ptr(), x.grad

    agree(scene, backend)


def test_grad_mode_switched_on_inside_no_grad(backend):
    def program(x):
        with torch.enable_grad():
            y = x * 2
        return y, x * 3, y * 2

    def scene(compiler):
        function, x = compiler(program), leaf(3)
        with torch.no_grad():
            results = function(x)
        results[0].sum().backward()
        return results, x.grad, function(x)

    agree(scene, backend)


WINDOWS = {
    "slice": lambda x: x[1:],
    "transposed": lambda x: x.t(),
    "several": lambda x: (x[1:], x.t(), x.sum()),
    "a chain": lambda x: x.t()[1:].unsqueeze(0),
    "split": lambda x: x.split(1),
    "itself": lambda x: x.view_as(x),
    "changed before": lambda x: x.add_(1)[1:],
    "changed through": lambda x: x[1:].add_(1),
    "of a value inside": lambda x: (x * 2)[1:],
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("kind", ["plain", "leaf", "view"])
def test_a_window_that_is_returned_without_gradients_is_one(kind, mode, backend):
    def look(run):
        whole = torch.arange(12.0).view(4, 3)
        x = whole[1:] if kind == "view" else torch.arange(9.0).view(3, 3).clone().requires_grad_(kind == "leaf")
        base = x._base if kind == "view" else x
        with mode():
            results = run(x)
        results = results if isinstance(results, tuple) else (results,)
        seen = [(each._is_view(), each._base is base, each.requires_grad, each.is_inference()) for each in results]
        with mode():
            results[0].fill_(7)  # reaches the memory that it is a window on, and only that
        return seen, [each.detach() for each in results], x.detach(), whole

    for name, function in WINDOWS.items():
        compiled = bothways.compile(function, backend=backend, fullgraph=True)
        for _ in range(2):
            differs = difference(look(function), look(compiled))
            assert differs is None, (name, differs)
