"""Versions of what a compiled update changes are those of eager: they tell autograd what may not be used any more."""

import pytest
import torch

import bothways
from bothways.capture.shapes.changes import written_roots
from bothways.fake import lists, thin_outline
from bothways.testing import RecordGraphs

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = pytest.mark.every_backend  # what counts an update is another thing on each


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def tensors(count=3, **options):
    return [torch.full((4,), 2.0, **options) for _ in range(count)]


UPDATES = {
    "add": lambda params, grads: torch._foreach_add_(params, grads, alpha=-0.1),
    "number": lambda params, grads: torch._foreach_mul_(params, 0.9),
    "addcdiv": lambda params, grads: torch._foreach_addcdiv_(params, grads, grads, -0.1),
    "lerp": lambda params, grads: torch._foreach_lerp_(params, grads, 0.1),
    "copy": lambda params, grads: torch._foreach_copy_(params, grads),
    "one by one": lambda params, grads: [param.add_(grad) for param, grad in zip(params, grads, strict=True)],
    "data": lambda params, grads: [param.data.add_(grad) for param, grad in zip(params, grads, strict=True)],
    "fused": lambda params, grads: torch._fused_sgd_(
        params, grads, [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=False,
    ),
}  # fmt: skip


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", UPDATES)
def test_a_list_that_is_changed_has_the_versions_of_eager(name, backend):
    def function(params, grads):
        UPDATES[name](params, grads)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            params, grads = tensors(requires_grad=True), [tensor + 1 for tensor in tensors()]
            with torch.no_grad():
                run(params, grads)
            found.append((params, [param._version > 0 for param in params], [grad._version for grad in grads]))
        (plain, *counted), (other, *also_counted) = found
        assert counted == also_counted
        torch.testing.assert_close(other, plain)


WEIGHTS = {"a number": lambda: 0.25, "a tensor": lambda: torch.tensor(0.25)}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_what_a_kernel_for_a_list_does_not_count_is_not_counted(weight, backend, monkeypatch):
    """As on GPUs, where ATen's for ``lerp`` forgets to, unless the tensors of the list differ."""
    monkeypatch.setattr(lists, "AT_ONCE", frozenset(["cpu", "cuda"]))

    def function(params, ends, weight):
        with torch.no_grad():
            torch._foreach_lerp_(params, ends, weight)

    for others, counted in (([], 0), ([torch.ones(4, dtype=torch.float64)], 1), ([torch.ones(2, 4)[:, 1]], 1)):
        compiled = bothways.compile(function, backend=backend, fullgraph=True)
        for _ in range(2):
            params = [one.clone() for one in tensors()] + [torch.empty_like(one).copy_(one) for one in others]
            params[-1] = others[0].as_strided(others[0].shape, others[0].stride()) if others else params[-1]
            ends = [one.new_ones(one.shape) for one in params]
            before = [one._version for one in params]
            expected = [one.detach().lerp(end, 0.25) for one, end in zip(params, ends, strict=True)]
            compiled(params, ends, WEIGHTS[weight]())
            torch.testing.assert_close(params, expected)
            found = [one._version - number for one, number in zip(params, before, strict=True)]
            assert found == [counted] * len(params)


def test_what_is_not_counted_is_put_back_where_a_graph_fails_whatever_its_version_says():
    def function(averages, gradients, x, place):
        torch._foreach_lerp_(averages, gradients, 0.1)
        return x[place]

    recorded = RecordGraphs()
    compiled = bothways.compile(function, backend=recorded)
    compiled(tensors(2), tensors(2), torch.ones(3), torch.tensor(1))
    graph = recorded.only.gm.graph
    [node] = graph.find_nodes(op="call_function", target=torch._foreach_lerp_)
    averages, gradients = map(list, node.args[:2])
    counted = written_roots(graph.nodes)
    assert {*averages, *gradients} == counted.counted
    for place, uncounted in (("cpu", []), ("cuda:0", averages)):
        for node in averages:
            node.meta["example_value"] = thin_outline((4,), (1,), torch.float32, torch.device(place))
        assert written_roots(graph.nodes).as_data == set(uncounted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_a_backward_after_the_step_says_that_a_parameter_was_changed(optimizer, backend):
    model = torch.nn.Linear(4, 4)
    steps = optimizer(model.parameters(), lr=0.1, foreach=True)
    step = bothways.compile(lambda: steps.step(), backend=backend)
    for _ in range(3):
        loss = model(torch.randn(2, 4, requires_grad=True)).sum()
        loss.backward(retain_graph=True)
        step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_of_tensors_whose_elements_share_memory_is_changed_as_eager_does(backend):
    def function(params):
        torch._foreach_add_(params, 1.0)

    compiled = bothways.compile(function, backend=backend)
    found = []
    for run in (function, compiled):
        params = [torch.zeros(1).expand(4), torch.zeros(4)]
        try:
            run(params)
        except RuntimeError as error:
            found.append((str(error)[:40], params))
        else:
            found.append(("", params))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[1][1], found[0][1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_step_of_halves_divides_by_no_zero(optimizer, backend):
    found = []
    for is_compiled in (False, True):
        param = torch.nn.Parameter(torch.linspace(-1, 1, 64).half())
        steps = optimizer([param], lr=0.1, fused=True)
        step = bothways.compile(lambda steps=steps: steps.step(), backend=backend) if is_compiled else steps.step
        for _ in range(3):
            param.grad = torch.zeros_like(param)
            step()
        found.append(param.detach())
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_of_a_list_that_is_read_for_another_is_read_after_it_was_changed(backend):
    def function(one, other):
        torch._foreach_copy_([one, other], [other, one])

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        one, other = torch.zeros(4), torch.ones(4)
        compiled(one, other)
        assert one.tolist() == other.tolist() == [1.0] * 4
