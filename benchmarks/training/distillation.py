"""A small network that learns from a larger one, also from what forward hooks see inside of both."""

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


def network(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(32, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(width, 10))


def build(compile: Compile) -> Training:
    teacher, student = network(256, 3).eval().requires_grad_(False), network(64, 2)
    bridge = nn.Linear(64, 256)
    seen: dict[str, torch.Tensor] = {}
    teacher[-2].register_forward_hook(lambda module, args, result: seen.__setitem__("teacher", result))
    student[-2].register_forward_hook(lambda module, args, result: seen.__setitem__("student", result))
    teach, learn = compile(teacher), compile(student)
    trained = [*student.parameters(), *bridge.parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, nesterov=True)

    def step(n: int) -> torch.Tensor:
        x, target = torch.randn(128, 32), torch.randint(0, 10, (128,))
        with torch.no_grad():
            taught = teach(x)
        logits = learn(x)
        soft = F.kl_div(F.log_softmax(logits / 4, dim=1), F.softmax(taught / 4, dim=1), reduction="batchmean")
        loss = F.cross_entropy(logits, target) + 16 * soft + F.mse_loss(bridge(seen["student"]), seen["teacher"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, trained)
