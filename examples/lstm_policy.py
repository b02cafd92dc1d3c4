"""An LSTM learns to remember. The collector passes the state from step to step; the learner runs whole episodes.

python examples/lstm_policy.py [--fast]
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from collector import SyncDataCollector

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few batches, to see that it works")
batches, N, T = 20 if parser.parse_args().fast else 400, 32, 8


class Remember(gym.Env):
    """The first observation shows 1 or -1. The last of eight actions has to repeat it."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.cue = 0, int(self.np_random.integers(2))
        return np.full(1, 2 * self.cue - 1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps == T and action == self.cue), self.steps == T, False, {}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 2)

    def initial_state(self, k):  # at the start of an episode; rows come first: (k, layers, hidden)
        return torch.zeros(k, 1, 32), torch.zeros(k, 1, 32)

    def forward(self, obs, state):  # one step of k envs
        out, state = self.lstm(obs[:, None], tuple(rows.transpose(0, 1).contiguous() for rows in state))
        action = torch.distributions.Categorical(logits=self.head(out[:, 0]))
        return {"action": action, "state": tuple(rows.transpose(0, 1) for rows in state)}


torch.manual_seed(0)
policy = Recurrent()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
with SyncDataCollector([Remember] * N, policy, frames_per_batch=N * T, device="cpu") as collector:
    for batch, _ in zip(collector, range(batches), strict=False):  # (32, 8, ...): a whole episode per row
        dist = torch.distributions.Categorical(logits=policy.head(policy.lstm(batch.obs)[0]))
        gain = (batch.reward.sum(1, keepdim=True) - 0.5).float()
        loss = -(dist.log_prob(batch.action) * gain).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{batches} batches, then right in {100 * collector.evaluate(64).returns.mean():.0f}% of 64 episodes")
