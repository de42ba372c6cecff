"""Random numbers in compiled functions are eager's, one by one."""

import pytest
import torch
import torch.nn.functional as F
from observing import BACKENDS, agree, leaf

pytestmark = [pytest.mark.every_backend, pytest.mark.parametrize("backend", BACKENDS)]

PROGRAMS = {
    "dropout": lambda x: F.dropout(x.t(), 0.5),
    "dropout of three dimensions": lambda x: F.dropout(x.view(3, 2, 4).permute(1, 2, 0), 0.3) * 2,
    "alpha_dropout": lambda x: F.alpha_dropout(x.t(), 0.5),
    "uniform_": lambda x: x.t() * torch.empty_like(x.t()).uniform_(),
    "rand_like": lambda x: x.t() * torch.rand_like(x.t()),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 3, 4).transpose(1, 2)] * 3, dropout_p=0.5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tensors_of_every_layout(backend, name):
    def scene(compiler):
        function = compiler(PROGRAMS[name])
        seen = []
        for _ in range(2):
            x = leaf(6, 4)
            result = function(x)
            result.sum().backward()
            seen += [result, x.grad, function(torch.randn(6, 4))]
        return seen

    agree(scene, backend)


def test_an_encoder_layer(backend):
    def scene(compiler):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        function, x = compiler(layer), leaf(2, 5, 8)
        result = function(x)
        result.sum().backward()
        return result

    agree(scene, backend)


def test_a_graph_that_fails_after_drawing_some(backend):
    def program(x, index):
        noisy = F.dropout(x, 0.5)
        try:
            return noisy[index]
        except IndexError:
            return noisy

    def scene(compiler):
        function, x = compiler(program), leaf(4)
        return [function(x, torch.tensor([index])) for index in (1, 7, 2)]

    agree(scene, backend)
