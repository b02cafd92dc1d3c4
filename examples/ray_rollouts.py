"""PPO on CartPole with the rollouts of two Ray actors. Needs torch and ray.

python examples/ray_rollouts.py [--fast]
On a cluster: `ray job submit -- python examples/ray_rollouts.py`, with more actors.
"""

import argparse

import gymnasium as gym
import torch
from torch import nn
from torch.distributions import Categorical

from collector import ActorConfig, RayCollector

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="two updates, to see that it works")
updates, GAMMA, LAMBDA = 2 if parser.parse_args().fast else 40, 0.99, 0.95


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1))

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        dist = Categorical(logits=self.actor(obs))
        action = dist.sample()
        return {"action": action, "log_prob": dist.log_prob(action)}


torch.manual_seed(0)
agent, returns = Agent(), []
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
env_fns = [lambda: gym.make("CartPole-v1")] * 4  # the envs of each actor
settings = {"num_actors": 2, "frames_per_batch": 1024, "total_frames": 1024 * updates}
actors = ActorConfig(num_cpus=0.5)
with RayCollector(env_fns, agent, actors=actors, storing_device="cpu", **settings) as collector:
    collector.set_seed(0)
    for batch in collector:
        returns += batch.episode_returns.tolist()
        with torch.no_grad():
            value, next_value = agent.critic(batch.obs)[..., 0], agent.critic(batch.next.obs)[..., 0]
        delta = batch.reward.float() + GAMMA * next_value * ~batch.terminated - value
        advantage, last = torch.zeros_like(delta), torch.zeros(len(delta))
        for t in reversed(range(delta.shape[1])):
            advantage[:, t] = last = delta[:, t] + GAMMA * LAMBDA * ~batch.done[:, t] * last
        columns = batch.obs, batch.action, batch.extras["log_prob"], advantage, advantage + value
        obs, action, log_prob, advantage, target = (column.flatten(0, 1) for column in columns)
        for rows in torch.cat([torch.randperm(len(obs)) for _ in range(4)]).split(128):
            dist, adv = Categorical(logits=agent.actor(obs[rows])), advantage[rows]
            adv, ratio = (adv - adv.mean()) / (adv.std() + 1e-8), (dist.log_prob(action[rows]) - log_prob[rows]).exp()
            policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = policy_loss + 0.5 * (agent.critic(obs[rows])[:, 0] - target[rows]).pow(2).mean()
            optimizer.zero_grad()
            (loss - 0.01 * dist.entropy().mean()).backward()
            optimizer.step()
        collector.update_policy_weights_()  # the next batch is collected with the new weights
    tail, stats = returns[-20:], collector.stats()
print(f"{stats.delivered} steps of {len(stats.actors)} actors, mean return of the last 20: {sum(tail) / len(tail):.1f}")
