"""AgileRL's PPO on the env whose right value is known."""

from __future__ import annotations

import gymnasium as gym
import torch
from agilerl.algorithms.ppo import PPO
from agilerl.rollouts import collect_rollouts

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, Ends, cut_envs

STEPS = 16


def ppo(ends: Ends, *, ours: bool, mode: str = "NextStep") -> float:
    module = vecenv if ours else gym.vector
    envs = module.SyncVectorEnv(cut_envs(ends), autoreset_mode=gym.vector.AutoresetMode(mode))
    agent = PPO(
        envs.single_observation_space,
        envs.single_action_space,
        batch_size=STEPS * ENVS,
        lr=0.01,
        learn_step=STEPS * ENVS,
        gamma=GAMMA,
        num_envs=ENVS,
        update_epochs=10,
        max_grad_norm=1e9,
        share_encoders=False,
    )
    last: tuple = (None, None, None, None)
    for _ in range(40):
        names = ("last_obs", "last_done", "last_scores", "last_info")
        _, *last = collect_rollouts(agent, envs, n_steps=STEPS, **dict(zip(names, last, strict=True)))
        agent.learn()
    envs.close()
    with torch.no_grad():
        return agent.critic(torch.ones(1, 1)).item()
