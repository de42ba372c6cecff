"""Forward hooks and forward-pre hooks: they run inside the capture, and adding or removing one is noticed."""

import torch
from module_programs import X, check_changes
from torch import nn

import bothways
from bothways.testing import same


def test_forward_hooks_come_and_go():
    handles = []
    log = []

    def with_kwargs(module, args, kwargs):
        log.append((len(args), list(kwargs)))
        return args, kwargs

    check_changes(
        lambda: nn.Linear(4, 4),
        lambda m: handles.append(m.register_forward_hook(lambda m, args, out: out * 2)),
        lambda m: handles.append(m.register_forward_pre_hook(lambda m, args: (args[0] + 1,))),
        lambda m: handles.append(m.register_forward_pre_hook(lambda m, args: args[0] * 3)),
        lambda m: handles.append(m.register_forward_pre_hook(with_kwargs, with_kwargs=True)),
        lambda m: handles.append(
            m.register_forward_hook(lambda m, a, k, out: out - 5, with_kwargs=True, prepend=True)
        ),
        lambda m: handles.pop(0).remove(),
        lambda m: handles.pop(0).remove(),
    )
    assert log and set(map(repr, log)) == {"(1, [])"}


def test_hooks_see_and_keep_the_real_objects():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    outputs = {}
    for name, part in module.named_modules():
        part.register_forward_hook(lambda m, args, out, name=name: outputs.__setitem__(name, (m, out)))
    out = bothways.compile(lambda x: module(x), backend="eager", fullgraph=True)(X)
    assert outputs[""][1] is out is outputs["1"][1]
    assert outputs["0"][0] is module[0] and same(outputs["0"][1], module[0](X))


def test_backward_hooks_and_hooks_on_all_modules_run_as_plain_python():
    module, log = nn.Linear(4, 4), []
    run = bothways.compile(lambda x: module(x), backend="eager", fullgraph=False)
    run(X)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: log.append("all"))
    try:
        run(X)
    finally:
        handle.remove()
    assert log == ["all"]
    module.register_full_backward_hook(lambda m, grad_in, grad_out: log.append("backward"))
    run(X.clone().requires_grad_()).sum().backward()
    assert log == ["all", "backward"]
