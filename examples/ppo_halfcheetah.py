"""PPO for continuous actions in a single file, like CleanRL, on HalfCheetah-v5. Needs torch and vecenv[mujoco].

python examples/ppo_halfcheetah.py [--fast]
"""

import argparse

import torch
from gymnasium.wrappers import vector as wrappers
from torch import nn
from torch.distributions import Independent, Normal

from vecenv import AsyncVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="two updates, to see that it works")
updates, N, T, GAMMA, LAMBDA = 2 if parser.parse_args().fast else 150, 8, 512, 0.99, 0.95

torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help a small network, and the workers need the CPUs
envs = wrappers.RecordEpisodeStatistics(AsyncVectorEnv(["HalfCheetah-v5"] * N))
envs = wrappers.NormalizeReward(wrappers.NormalizeObservation(wrappers.ClipAction(envs)), gamma=GAMMA)
size, actions = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
actor, critic = (nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, out)) for out in (actions, 1))
log_std = nn.Parameter(torch.zeros(actions))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=1e-3)


def act(obs):
    return Independent(Normal(actor(obs), log_std.exp()), 1)


obs, over, returns = torch.as_tensor(envs.reset(seed=0)[0]).float(), torch.zeros(N), []
for _ in range(updates):
    rows = []
    with torch.no_grad():
        for _ in range(T):
            action = act(obs).sample()
            next_obs, reward, terminated, truncated, infos = envs.step(action.numpy())
            # The step after the end of an episode is a reset, not a transition, so the loss leaves out its row.
            row = [obs, action, act(obs).log_prob(action), critic(obs)[:, 0], torch.as_tensor(reward).float(), 1 - over]
            obs, over = torch.as_tensor(next_obs).float(), torch.as_tensor(terminated | truncated).float()
            rows.append((*row, critic(obs)[:, 0] * (1 - torch.as_tensor(terminated).float()), over))
            returns.extend(infos["episode"]["r"][infos["_episode"]].tolist() if "episode" in infos else [])
    b_obs, b_action, b_logprob, value, reward, real, next_value, ended = map(torch.stack, zip(*rows, strict=True))
    advantage, last = torch.zeros(T, N), torch.zeros(N)
    for t in reversed(range(T)):
        advantage[t] = last = reward[t] + GAMMA * next_value[t] - value[t] + GAMMA * LAMBDA * (1 - ended[t]) * last
    batch = [rows[real.bool()] for rows in (b_obs, b_action, b_logprob, advantage, advantage + value)]
    for picked in [rows for _ in range(10) for rows in torch.randperm(len(batch[0])).split(512)]:
        obs_, action_, logprob_, adv, return_ = (rows[picked] for rows in batch)
        ratio, adv = (act(obs_).log_prob(action_) - logprob_).exp(), (adv - adv.mean()) / (adv.std() + 1e-8)
        policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * (critic(obs_)[:, 0] - return_).pow(2).mean()).backward()
        optimizer.step()
envs.close()
print(f"{updates * T * N} steps, {len(returns)} episodes, mean return of the last 8: {sum(returns[-8:]) / 8:.1f}")
