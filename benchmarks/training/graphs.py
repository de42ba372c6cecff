"""Message passing on graphs whose numbers of nodes and edges change with every batch."""

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        messages = self.message(torch.cat([x[source], x[target]], dim=-1))
        received = torch.zeros_like(x).index_add(0, target, messages)
        strongest = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand_as(messages), messages, "amax", include_self=False
        )
        return self.norm(x + F.relu(self.update(torch.cat([received, strongest], dim=-1))))


class Network(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.inward = nn.Linear(12, width)
        self.layers = nn.ModuleList([Convolution(width) for _ in range(3)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, graphs: int) -> torch.Tensor:
        x = self.inward(x)
        for layer in self.layers:
            x = layer(x, edges)
        total = x.new_zeros(graphs, x.shape[1]).index_add(0, graph, x)
        count = torch.bincount(graph, minlength=graphs).clamp(min=1)
        return self.head(total / count[:, None])


def build(compile: Compile) -> Training:
    model = Network()
    compiled = compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(n: int) -> torch.Tensor:
        nodes, edges = 150 + 7 * (n % 11), 400 + 13 * (n % 17)
        graph = torch.randint(0, 16, (nodes,)).sort().values
        x, links = torch.randn(nodes, 12), torch.randint(0, nodes, (2, edges))
        loss = F.cross_entropy(compiled(x, links, graph, 16), torch.randint(0, 5, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
