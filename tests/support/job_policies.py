"""Policies with state between calls, for tests of jobs. They need torch, so they have a separate module."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from collector import MLPPolicy

HERE = "tests.support.job_policies"


class Carrying(nn.Module):
    """Network for CartPole that changes itself in each call, as `how` says. In evaluation mode, "norm" does not
    change.
    """

    def __init__(self, observation_space: Any, action_space: Any, how: str, training: bool = True) -> None:
        super().__init__()
        self.net, self.norm = MLPPolicy(observation_space, action_space), nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.calls, self.last, self.rng = 0, np.zeros(4), np.random.default_rng(0)
        self.how = how
        self.train(training)

    def forward(self, obs: torch.Tensor) -> Any:
        if self.how == "norm":
            return self.net(self.norm(obs))
        if self.how == "buffer":
            self.mean += (obs.mean(0) - self.mean) / 10
        elif self.how == "attribute":
            self.calls += 1
        elif self.how == "array":
            self.last = obs[0].numpy().copy()
        elif self.how == "generator":
            obs = obs + torch.from_numpy(self.rng.normal(size=4)).float()
        return self.net(obs - self.mean)
