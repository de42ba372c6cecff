"""Proximal policy optimization: an actor and a critic, advantages, several epochs over a rollout."""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from training import Compile, Training


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h).squeeze(-1)


def build(compile: Compile) -> Training:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)

    @compile
    def loss_of(
        states: Tensor,
        actions: Tensor,
        before: Tensor,
        advantages: Tensor,
        returns: Tensor,
    ) -> Tensor:
        logits, values = model(states)
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(actions) - before).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return -clipped.mean() + 0.5 * (values - returns).pow(2).mean() - 0.01 * policy.entropy().mean()

    def step(n: int) -> Tensor:
        states, rewards = torch.randn(128, 8), torch.randn(128)
        with torch.no_grad():
            logits, values = model(states)
            policy = Categorical(logits=logits)
            actions = policy.sample()
            before = policy.log_prob(actions)
            advantages, last = torch.zeros(128), torch.zeros(())
            for t in reversed(range(127)):
                delta = rewards[t] + 0.99 * values[t + 1] - values[t]
                advantages[t] = last = delta + 0.95 * 0.99 * last
            returns = advantages + values
        total = torch.zeros(())
        for _ in range(2):
            for rows in torch.randperm(128).split(32):
                loss = loss_of(states[rows], actions[rows], before[rows], advantages[rows], returns[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                total += loss.detach()
        return total

    return Training(step, model.parameters())
