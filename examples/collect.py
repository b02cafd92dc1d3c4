"""Actor-critic on batches of SyncDataCollector. The policy also returns the log-probability for the learner.

python examples/collect.py [--fast]
"""

import argparse

import gymnasium as gym
import torch
from torch import nn

from collector import SyncDataCollector
from vecenv import ShmemVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few batches, to see that it works")
batches = 5 if parser.parse_args().fast else 150

torch.manual_seed(0)  # the policy draws from torch's random stream
torch.set_num_threads(1)  # more threads do not help a small network


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1))

    def forward(self, obs):  # obs: (k, 4), a row for each env that steps next
        dist = torch.distributions.Categorical(logits=self.actor(obs))
        action = dist.sample()
        return {"action": action, "log_prob": dist.log_prob(action)}  # batch.action, batch.extras["log_prob"]


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
envs = ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
with SyncDataCollector(envs, model, frames_per_batch=512, total_frames=512 * batches, device="cpu") as collector:
    collector.set_seed(0)
    for batch in collector:  # tensors, by device=: obs (8, 64, 4), action, reward, terminated, truncated (8, 64)
        reward, end = batch.reward.float(), ~batch.done
        with torch.no_grad():
            value, after = (model.critic(obs)[..., 0] for obs in (batch.obs, batch.next.obs))
            delta = reward + 0.99 * ~batch.terminated * after - value
            advantage, last = torch.zeros_like(delta), torch.zeros(len(delta))
            for t in reversed(range(delta.shape[1])):
                advantage[:, t] = last = delta[:, t] + 0.99 * 0.95 * end[:, t] * last
        columns = (batch.obs, batch.action, batch.extras["log_prob"], advantage, advantage + value)
        obs, action, old, advantage, wanted = (column[batch.mask] for column in columns)  # without rows of failures
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            ratio = (torch.distributions.Categorical(logits=model.actor(obs)).log_prob(action) - old).exp()
            loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            loss = loss + 0.5 * (model.critic(obs)[..., 0] - wanted).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # the collector shares this module, so the next batch has new weights

with SyncDataCollector([lambda: gym.make("CartPole-v1")] * 8, model, frames_per_batch=8) as test:
    test.set_seed(1)
    print(test.collect(n_episode=20, keep=False))
