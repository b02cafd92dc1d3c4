"""Network and learner of the collector loops: two hidden layers of 64, and two epochs of Adam per batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical

STEPS = 64
"""Number of steps per env in a batch."""


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)


class Policy(Logits):
    """Policy that samples from the softmax of the logits."""

    def forward(self, obs: torch.Tensor) -> Any:
        return Categorical(logits=self.net(obs)).sample()


class Learner:
    """REINFORCE without discounts, in minibatches of 256. This is the cheapest learning that resembles PPO."""

    def __init__(self, policy: Logits) -> None:
        self.policy, self.optimizer = policy, torch.optim.Adam(policy.parameters(), lr=1e-3)

    def two_epochs(self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> None:
        """Learn from a batch: `obs` (frames, 4), `action` and `reward` (frames,)."""
        for _ in range(2):
            for rows in torch.randperm(len(obs)).split(256):
                dist = Categorical(logits=self.policy.net(obs[rows]))
                loss = -(dist.log_prob(action[rows]) * reward[rows]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
