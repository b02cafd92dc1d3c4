"""Stable-Baselines3's algorithms on the env whose right value is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common import vec_env

import vecenv.sb3
from benchmarks.time_limits.cut_env import GAMMA, Ends, cut_envs

ONES = torch.ones(1, 1)


def ppo(ends: Ends, *, ours: bool) -> float:
    model = learn(PPO, ends, ours, 3_200, n_steps=16, batch_size=64, learning_rate=0.05)
    return model.policy.predict_values(ONES).item()


def a2c(ends: Ends, *, ours: bool) -> float:
    model = learn(A2C, ends, ours, 20_000, gae_lambda=0.95, learning_rate=0.01)
    return model.policy.predict_values(ONES).item()


def dqn(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "gradient_steps": 4, "target_update_interval": 20}
    return learn(DQN, ends, ours, 12_000, learning_rate=0.05, **options).q_net(ONES).mean().item()


def sac(ends: Ends, *, ours: bool) -> float:
    options = {"learning_starts": 100, "tau": 0.1, "ent_coef": 0.0, "gradient_steps": 2}
    model = learn(SAC, ends, ours, 4_000, continuous=True, learning_rate=0.02, **options)
    with torch.no_grad():
        return torch.cat(model.critic(ONES, torch.zeros(1, 1))).mean().item()


def learn(
    algorithm: Any,
    ends: Ends,
    ours: bool,
    steps: int,
    continuous: bool = False,
    net: Sequence[int] = (),
    **options: Any,
) -> Any:
    """Return the trained model. `net` has the sizes of the hidden layers."""
    envs = (vecenv.sb3 if ours else vec_env).DummyVecEnv(cut_envs(ends, continuous=continuous))
    model = algorithm(
        "MlpPolicy", envs, gamma=GAMMA, policy_kwargs={"net_arch": list(net)}, seed=0, device="cpu", **options
    )
    model.learn(steps)
    envs.close()
    return model
