"""Elements at a mask that is made of constants alone: how many there are is known, so that nothing breaks. Contrastive
losses leave out the diagonal of their similarities so.
"""

import pytest
import torch
from agreeing import agree
from torch.nn import functional as F

import bothways


def info_nce(features):
    count = features.shape[0] // 2
    labels = torch.cat([torch.arange(count) for _ in range(2)])
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
    features = F.normalize(features, dim=1)
    similarity = features @ features.T
    diagonal = torch.eye(labels.shape[0], dtype=torch.bool)
    labels = labels[~diagonal].view(labels.shape[0], -1)
    similarity = similarity[~diagonal].view(similarity.shape[0], -1)
    positives = similarity[labels.bool()].view(labels.shape[0], -1)
    negatives = similarity[~labels.bool()].view(similarity.shape[0], -1)
    logits = torch.cat([positives, negatives], dim=1) / 0.07
    return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


def every_other_row(x):
    return x[torch.arange(x.shape[0]) % 2 == 0] * 2


def of_a_transposed_one(x):
    mask = torch.ones(x.shape[1], 2, dtype=torch.bool).triu(1)
    return x.t()[:, :2][mask]


def observe(function, seed):
    torch.manual_seed(seed)
    x = torch.randn(6, 4, requires_grad=True)
    result = function(x)
    (result * torch.arange(result.numel()).view_as(result)).sum().backward()
    return {"result": result.detach(), "stride": result.stride(), "gradient": x.grad}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [info_nce, every_other_row, of_a_transposed_one], ids=lambda f: f.__name__)
def test_there_is_no_break(program, backend):
    agree(program, observe, 0, 1, 2, backend=backend, fullgraph=True, programs=1, tol=1e-5)


def test_a_mask_that_data_says_breaks():
    compiled = bothways.compile(lambda x: x[x > 0], backend="eager")
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(5)
        assert torch.equal(compiled(x), x[x > 0])
    assert {found.code for found in bothways.explain(compiled).breaks} == {"dynamic_shape"}


def test_a_mask_that_was_changed_is_not_known():
    def program(x):
        mask = torch.eye(6, dtype=torch.bool)
        mask[0, :4] = x[0] > 0
        return (x @ x.t())[mask]

    agree(program, observe, 0, 1, 2)


def test_a_mask_that_does_not_fit_is_refused():
    def program(x):
        return x[torch.eye(5, dtype=torch.bool)]

    compiled = bothways.compile(program, backend="eager")
    for function in (program, compiled, compiled):
        with pytest.raises(IndexError, match="does not match the shape"):
            function(torch.ones(6, 4))
