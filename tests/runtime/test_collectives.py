"""Collectives of ``torch.distributed`` in compiled functions: nodes of the graph, run as often as in eager.

Here the group is one process; what two tell each other is in ``test_collectives_of_two.py``.
"""

import copy
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import bothways

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here")


BACKENDS = ("eager", "aot_eager", "native")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def begin():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@pytest.fixture(autouse=True)
def group():
    begin()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def count(group=None):
    """How many collectives were run."""
    return (group or dist.group.WORLD)._get_sequence_number_for_group()


def graphs(compiled):
    return len([one for one in bothways.history(compiled) if one.graph is not None])


def test_a_step_that_sums_gradients_by_hand_is_one_graph(backend):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    ours = copy.deepcopy(plain)

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            return total

        return step

    step, compiled = step_of(plain), bothways.compile(step_of(ours), backend=backend, fullgraph=True)
    for _ in range(4):
        x = torch.randn(3, 8)
        expected, before = step(x), count()
        torch.testing.assert_close(compiled(x), expected)
        assert count() - before == 5  # the first call included
    assert graphs(compiled) == 1
    torch.testing.assert_close([*ours.parameters()], [*plain.parameters()])


def test_gradients_that_are_averaged_by_their_data_are_one_graph(backend):
    """As PyTorch's tutorial has it."""
    torch.manual_seed(0)
    plain = nn.Linear(8, 4)
    ours = copy.deepcopy(plain)

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
                parameter.grad.data /= 2.0
            optimizer.step()
            return loss.item()

        return step

    step, compiled = step_of(plain), bothways.compile(step_of(ours), backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, 8)
        assert compiled(x) == pytest.approx(step(x))
    torch.testing.assert_close([*ours.parameters()], [*plain.parameters()])
    [one] = bothways.history(compiled)
    assert "captured:" not in str(one)


def exchanges(x):
    """Each of those that are captured."""
    half = x[:1] * 2
    dist.all_reduce(half, op=dist.ReduceOp.MAX)
    dist.broadcast(half, 0)
    whole, parts, back, swapped = torch.empty(1, 3), [torch.empty(1, 3)], torch.empty(1, 3), torch.empty(1, 3)
    dist.all_gather_into_tensor(whole, half)
    dist.all_gather(parts, half + 1)
    dist.reduce_scatter_tensor(back, whole)
    dist.all_to_all_single(swapped, parts[0])
    dist.barrier()
    dist.all_reduce(x, dist.ReduceOp.SUM, dist.group.WORLD)
    return whole, parts[0], back, swapped * dist.get_world_size() + dist.get_rank(), x


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_each_runs_once_a_call_in_order(backend):
    compiled = bothways.compile(exchanges, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3)
        before = count()
        expected = exchanges(x.clone())
        own = count() - before
        found = compiled(x)
        torch.testing.assert_close(found, expected)
        assert count() - before == 2 * own
    assert graphs(compiled) == 1


def test_one_whose_result_is_not_read_runs(backend):
    def tells(x):
        y = x * 2
        dist.all_reduce(y)
        return x + 1

    compiled = bothways.compile(tells, backend=backend, fullgraph=True)
    for _ in range(3):
        before = count()
        compiled(torch.ones(3))
        assert count() - before == 1


def test_what_autograd_keeps_is_read_as_in_eager(backend):
    """What a collective changes is not counted: a backward reads what is there."""
    weight = torch.ones(3, requires_grad=True)

    def changes_saved(x):
        y = x * 2
        z = (weight * y).sin()
        dist.all_reduce(y)
        shown = z.exp()
        dist.all_reduce(shown.detach())
        return shown.sum()

    compiled = bothways.compile(changes_saved, backend=backend)
    for _ in range(2):
        expected, found = (torch.autograd.grad(run(torch.arange(3.0)), weight) for run in (changes_saved, compiled))
        torch.testing.assert_close(found, expected)


def test_a_changed_flag_is_read_again(backend):
    def all_agree(x):
        flag = torch.ones(1)
        dist.all_reduce(flag)
        return x * 2 if flag.item() == dist.get_world_size() else x

    compiled = bothways.compile(all_agree, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_versions_stay_as_in_eager(backend):
    def changes(x):
        dist.all_reduce(x)
        return x + 1

    compiled = bothways.compile(changes, backend=backend)
    for _ in range(2):
        x, y = torch.ones(3), torch.ones(3)
        compiled(x)
        changes(y)
        assert x._version == y._version
        assert x.is_cuda or x._version == 0


# Groups -----------------------------------------------------------------------------------------------------


def doubled(x, group=None):
    y = x * 2
    dist.all_reduce(y, group=group)
    return y * dist.get_world_size(group)


def test_another_default_group_is_another_program(backend):
    compiled = bothways.compile(doubled, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(3))
    assert graphs(compiled) == 1
    dist.destroy_process_group()
    begin()
    before = count()
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert count() - before == 2
    assert graphs(compiled) == 2


def test_groups_of_ones_own(backend):
    one, other = dist.new_group([0]), dist.new_group([0])
    compiled = bothways.compile(doubled, backend=backend, fullgraph=True)
    for group in (one, other, one, None):
        before = count(group)
        compiled(torch.ones(3), group)
        assert count(group) - before == 1
    assert graphs(compiled) == 3


def test_a_group_that_was_destroyed_is_as_in_eager(backend):
    compiled = bothways.compile(doubled, backend=backend)
    group = dist.new_group([0])
    compiled(torch.ones(3))
    compiled(torch.ones(3), group)
    dist.destroy_process_group(group)
    before = count(group)
    torch.testing.assert_close(compiled(torch.ones(3), group), doubled(torch.ones(3), group))
    assert count(group) - before == 2
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        compiled(torch.ones(3))


def test_a_group_is_not_kept_alive(backend):
    compiled = bothways.compile(doubled, backend=backend)
    for _ in range(2):
        compiled(torch.ones(3), dist.group.WORLD)
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert group() is None


# What stays with Python -------------------------------------------------------------------------------------


def asynchronous(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def with_a_gradient(x):
    y = x.clone().requires_grad_() * 2
    dist.all_reduce(y)
    return y.detach()


PARAMETER = nn.Parameter(torch.ones(2, 3))


def of_a_parameter(x):
    dist.all_reduce(PARAMETER.data)
    return x * PARAMETER.detach()


def with_gaps(x):
    y = (x * 2).t()
    dist.all_reduce(y)
    return y + 1


def collected(x):
    y, z = x * 2, x * 3
    with dist._coalescing_manager():
        dist.all_reduce(y)
        dist.all_reduce(z)
    return y + z


@pytest.mark.parametrize("function", [asynchronous, with_a_gradient, of_a_parameter, with_gaps, collected])
@pytest.mark.filterwarnings("ignore")
def test_these_run_as_plain_python(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(bothways.errors.Unsupported, match="all_reduce|_coalescing_manager"):
        bothways.compile(function, backend=backend, fullgraph=True)(torch.randn(2, 3))


def gathers_too_much(x):
    x.add_(1)
    dist.all_gather([torch.empty(5)], x)
    return x


def reduces_floats_bit_by_bit(x):
    x.add_(1)
    dist.all_reduce(x, op=dist.ReduceOp.BAND)
    return x


def from_nowhere(x):
    x.add_(1)
    dist.broadcast(x, 3)
    return x


@pytest.mark.parametrize("function", [gathers_too_much, reduces_floats_bit_by_bit, from_nowhere])
def test_errors_are_eagers_with_what_came_before_them(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        x, y = torch.zeros(3), torch.zeros(3)
        with pytest.raises(Exception) as expected:
            function(x)
        with pytest.raises(type(expected.value)) as found:
            compiled(y)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
        torch.testing.assert_close(y, x)


# Around them ------------------------------------------------------------------------------------------------


def test_a_checkpoint_tells_twice(backend):
    weight = torch.ones(3, requires_grad=True)

    def inner(x):
        h = torch.sin(weight * x)
        mean = h.detach() * 1
        dist.all_reduce(mean)
        return h * mean

    def checkpointed(x):
        loss = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, weight)

    compiled = bothways.compile(checkpointed, backend=backend)
    for _ in range(2):
        x, before = torch.randn(3), count()
        expected = checkpointed(x)
        assert count() - before == 2
        torch.testing.assert_close(compiled(x), expected)
        assert count() - before == 4


def test_a_hook_tells_once(backend):
    weight = torch.ones(3, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))

    def step(x):
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad * 1

    compiled = bothways.compile(step, backend=backend)
    for _ in range(3):
        x, before = torch.randn(3), count()
        torch.testing.assert_close(compiled(x), x)
        assert count() - before == 1


def test_numbers_drawn_around_one_are_eagers(backend):
    def noisy(x):
        y = x + torch.rand(3)
        dist.all_reduce(y)
        return y + torch.rand(3)

    compiled = bothways.compile(noisy, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = noisy(torch.ones(3))
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(torch.ones(3)), expected)
