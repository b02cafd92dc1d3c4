"""PPO in one file, like CleanRL's ppo.py: 128 steps per env, then 4 epochs of 4 minibatches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks.loops.vector_envs import GYMNASIUM

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.constant_(linear.bias, 0.0)
    return linear


def mlp(inputs: int, outputs: int, std: float) -> nn.Sequential:
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, std))


def ppo(vector_env: str, env_id: str, num_envs: int, **env_kwargs: Any) -> Iterator[tuple[int, float]]:
    wrappers = [gym.wrappers.RecordEpisodeStatistics]
    envs = GYMNASIUM[vector_env](env_id, num_envs, wrappers=wrappers, **env_kwargs)
    inputs, outputs = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
    actor, critic = mlp(inputs, outputs, 0.01), mlp(inputs, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)

    obs = torch.zeros(STEPS, num_envs, inputs)
    actions, logprobs, rewards, dones, values = torch.zeros(5, STEPS, num_envs)
    returns: list[float] = []
    try:
        next_obs = torch.as_tensor(envs.reset(seed=1)[0])
        next_done = torch.zeros(num_envs)
        while True:
            for step in range(STEPS):
                obs[step], dones[step] = next_obs, next_done
                with torch.no_grad():
                    dist = Categorical(logits=actor(next_obs))
                    action = dist.sample()
                    actions[step], logprobs[step] = action, dist.log_prob(action)
                    values[step] = critic(next_obs).flatten()
                found, reward, terminated, truncated, infos = envs.step(action.numpy())
                rewards[step] = torch.as_tensor(reward)
                next_obs, next_done = torch.as_tensor(found), torch.as_tensor(terminated | truncated).float()
                if "episode" in infos:
                    returns.extend(infos["episode"]["r"][infos["_episode"]].tolist())

            learning_began = time.perf_counter()
            with torch.no_grad():
                next_value, advantages, last = critic(next_obs).flatten(), torch.zeros(STEPS, num_envs), 0.0
                for t in reversed(range(STEPS)):
                    real = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
                    following = next_value if t == STEPS - 1 else values[t + 1]
                    delta = rewards[t] + GAMMA * following * real - values[t]
                    advantages[t] = last = delta + GAMMA * LAMBDA * real * last
            batch = [rows.reshape(-1) for rows in (actions, logprobs, advantages, advantages + values, values)]
            for _ in range(EPOCHS):
                for rows in torch.randperm(STEPS * num_envs).chunk(MINIBATCHES):
                    mb_action, mb_logprob, mb_advantage, mb_return, mb_value = (column[rows] for column in batch)
                    mb_obs = obs.reshape(-1, inputs)[rows]
                    dist, value = Categorical(logits=actor(mb_obs)), critic(mb_obs).flatten()
                    ratio = (dist.log_prob(mb_action) - mb_logprob).exp()
                    mb_advantage = (mb_advantage - mb_advantage.mean()) / (mb_advantage.std() + 1e-8)
                    policy_loss = -torch.min(
                        mb_advantage * ratio, mb_advantage * ratio.clamp(1 - CLIP, 1 + CLIP)
                    ).mean()
                    clipped = mb_value + (value - mb_value).clamp(-CLIP, CLIP)
                    value_loss = 0.5 * torch.max((value - mb_return) ** 2, (clipped - mb_return) ** 2).mean()
                    optimizer.zero_grad()
                    (policy_loss - ENTROPY * dist.entropy().mean() + VALUE * value_loss).backward()
                    nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                    optimizer.step()
            yield STEPS * num_envs, time.perf_counter() - learning_began
    finally:
        envs.close()
