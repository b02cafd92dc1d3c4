"""Shared by the loops of the collectors: a network with two hidden layers of 64, and two epochs of Adam on a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical

STEPS = 64
"""Steps of each env in a batch."""


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)


class Policy(Logits):
    """Draws from the softmax of the logits."""

    def forward(self, obs: torch.Tensor) -> Any:
        return Categorical(logits=self.net(obs)).sample()


class Learner:
    """REINFORCE without discounts, in minibatches of 256: the cheapest learning that has the shape of PPO's."""

    def __init__(self, policy: Logits) -> None:
        self.policy, self.optimizer = policy, torch.optim.Adam(policy.parameters(), lr=1e-3)

    def two_epochs(self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> None:
        """`obs` (frames, 4), `action` and `reward` (frames,)."""
        for _ in range(2):
            for rows in torch.randperm(len(obs)).split(256):
                dist = Categorical(logits=self.policy.net(obs[rows]))
                loss = -(dist.log_prob(action[rows]) * reward[rows]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
