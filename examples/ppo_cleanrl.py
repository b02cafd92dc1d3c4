"""PPO in a single file, like CleanRL, on vecenv's AsyncVectorEnv with NEXT_STEP autoreset. Needs torch.

python examples/ppo_cleanrl.py [--fast]
"""

import argparse

import gymnasium as gym
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

from vecenv import AsyncVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="two updates, to see that it works")
updates, N, T, GAMMA, LAMBDA = 2 if parser.parse_args().fast else 150, 8, 64, 0.99, 0.95

torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help a small network, and the workers need the CPUs
envs = RecordEpisodeStatistics(AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * N))
actor, critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, out)) for out in (2, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
obs = torch.as_tensor(envs.reset(seed=0)[0])
over, returns = torch.zeros(N), []
for _ in range(updates):
    rows = []
    with torch.no_grad():
        for _ in range(T):
            dist = Categorical(logits=actor(obs))
            action = dist.sample()
            next_obs, reward, terminated, truncated, infos = envs.step(action)
            # The step after the end of an episode is a reset, not a transition, so the loss leaves out its row.
            row = [obs, action, dist.log_prob(action), critic(obs)[:, 0], torch.as_tensor(reward).float(), 1 - over]
            obs, over = torch.as_tensor(next_obs), torch.as_tensor(terminated | truncated).float()
            rows.append((*row, critic(obs)[:, 0] * (1 - torch.as_tensor(terminated).float()), over))
            if "episode" in infos:
                returns.extend(infos["episode"]["r"][infos["_episode"]].tolist())
    b_obs, b_action, b_logprob, value, reward, real, next_value, ended = map(torch.stack, zip(*rows, strict=True))
    advantage, last = torch.zeros(T, N), torch.zeros(N)
    for t in reversed(range(T)):
        advantage[t] = last = reward[t] + GAMMA * next_value[t] - value[t] + GAMMA * LAMBDA * (1 - ended[t]) * last
    b_return, kept = advantage + value, real.bool()
    for _ in range(4):
        for rows_of in torch.randperm(int(kept.sum())).split(128):
            dist = Categorical(logits=actor(b_obs[kept][rows_of]))
            ratio = (dist.log_prob(b_action[kept][rows_of]) - b_logprob[kept][rows_of]).exp()
            adv = advantage[kept][rows_of]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            value_loss = (critic(b_obs[kept][rows_of])[:, 0] - b_return[kept][rows_of]).pow(2).mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()).backward()
            optimizer.step()
envs.close()

tail = returns[-20:]
print(f"{updates * T * N} steps, {len(returns)} episodes, mean return of the last 20: {sum(tail) / len(tail):.1f}")
