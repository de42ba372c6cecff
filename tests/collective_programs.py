"""Functions in which two processes tell each other something, for ``runtime/test_collectives_of_two.py``.

Each is made anew for each way of running it, in a process that knows its ``rank``.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


def gathers(rank):
    def run(x):
        whole, part = torch.empty(4, 3), torch.empty(1, 3)
        dist.all_gather_into_tensor(whole, x * 2)
        dist.reduce_scatter_tensor(part, x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x + 1)
        return whole.sum(0), part, torch.cat(parts), parts[0]

    return run


def gathers_into_a_buffer(rank):
    def run(x):
        buffer = torch.zeros(4, 3)
        dist.all_gather(list(buffer.chunk(2)), x * 2)
        return buffer + 1

    return run


def sends_to_each(rank):
    def run(x):
        swapped, uneven = torch.empty_like(x), torch.empty(3, 3)
        dist.all_to_all_single(swapped, x)
        sizes = [1, 2] if rank == 0 else [2, 1]
        dist.all_to_all_single(uneven, torch.cat([x, x[:1]]), sizes, sizes)
        return swapped + 1, uneven

    return run


def tells_what_was_given(rank):
    def run(x):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        y = x * 2
        dist.broadcast(x, 1)
        return x, y

    return run


def in_a_loop(rank):
    def run(x):
        for _ in range(20):
            x = x * 0.1
            dist.all_reduce(x)
        return x

    return run


def of_views(rank):
    def run(x):
        y = x * 2
        dist.all_reduce(y[0])
        flat = y.view(-1)
        dist.all_reduce(flat)
        return y, flat * 2

    return run


def whether_all_agree(rank):
    def run(x):
        flag = torch.zeros(1)
        if rank == 1:
            flag += 1
        dist.all_reduce(flag)
        return x + 1 if flag.item() > 0 else x - 1

    return run


def behind_a_barrier(rank):
    def run(x):
        y = x * 3
        dist.barrier()
        dist.all_reduce(y)
        return y - 1

    return run


def what_a_backward_reads(rank):
    weight = torch.full((2, 3), 0.1, requires_grad=True)

    def run(x):
        y = x * 0.01
        z = (weight * y).exp()
        dist.all_reduce(y)
        dist.all_reduce(z.detach())
        gradient = torch.autograd.grad((z * z).sum(), weight)[0]
        dist.all_reduce(gradient)
        return gradient

    return run


def a_statistic_of_a_layer(rank):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)

    def run(x):
        layer.zero_grad()
        hidden = layer(x)
        mean = hidden.detach().mean(0)
        dist.all_reduce(mean)
        loss = ((hidden - mean / dist.get_world_size()) ** 2).mean()
        loss.backward()
        return loss.detach(), layer.weight.grad.clone()

    return run


def in_a_checkpoint(rank):
    weight = torch.ones(2, 3, requires_grad=True)

    def inner(x):
        hidden = torch.sin(weight * x)
        known = hidden.detach() * 1
        dist.all_reduce(known)
        return hidden * known

    return lambda x: torch.autograd.grad(checkpoint(inner, x, use_reentrant=False).sum(), weight)[0]


class Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 1
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient * 1
        dist.all_reduce(gradient)
        return gradient


def in_a_custom_function(rank):
    weight = torch.ones(2, 3, requires_grad=True)
    return lambda x: torch.autograd.grad((Told.apply(weight * x) ** 2).sum(), weight)[0]


def asynchronous(rank):
    def run(x):
        y = x * 3
        work = dist.all_reduce(y, async_op=True)
        z = x + 1
        work.wait()
        return y + z

    return run


def a_step(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        return loss, norm, [parameter.detach().clone() for parameter in model.parameters()]

    return run


def a_step_in_one_bucket(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def run(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        bucket = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
        begin = 0
        for parameter in model.parameters():
            parameter.grad.copy_(bucket[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()
        optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    return run


PROGRAMS = (
    gathers, gathers_into_a_buffer, sends_to_each, tells_what_was_given, in_a_loop, of_views, whether_all_agree,
    behind_a_barrier, what_a_backward_reads, a_statistic_of_a_layer, in_a_checkpoint, in_a_custom_function,
    asynchronous, a_step, a_step_in_one_bucket,
)  # fmt: skip
