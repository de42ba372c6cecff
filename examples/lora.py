"""LoRA fine-tuning of a transformers model from a random initialisation: only the small matrices learn, in whole
compiled steps. Needs ``transformers``; nothing is downloaded.

    python examples/lora.py [steps]
"""

from __future__ import annotations

import copy
import math
import sys

import torch
from torch import nn

import bothways


class LoRA(nn.Module):
    """A frozen layer with a way around it through a few dimensions."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def adapted(model: nn.Module) -> nn.Module:
    """The model with its projections of queries and values adapted, and everything else frozen."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "v_proj"):
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, LoRA(getattr(module, name)))
    return model


def train(model: nn.Module, batches: torch.Tensor, compiled: bool) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    if compiled:
        step = bothways.compile(step)
    return [step(tokens) for tokens in batches]


def main(steps: int = 10) -> dict[str, list[float]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = adapted(LlamaForCausalLM(config))
    batches = torch.randint(0, 64, (1, 4, 16)).expand(steps, -1, -1)
    return {
        "plain": train(copy.deepcopy(model), batches, compiled=False),
        "compiled": train(model, batches, compiled=True),
    }


if __name__ == "__main__":
    for name, losses in main(int(sys.argv[1]) if len(sys.argv) > 1 else 10).items():
        print(f"{name:<9} {losses[0]:.4f} -> {losses[-1]:.4f}")
