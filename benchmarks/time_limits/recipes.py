"""The loops of `examples/`, and the one of CleanRL's ppo.py, on the env whose right value is known."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import nn

import vecenv
from benchmarks.time_limits.cut_env import ENVS, GAMMA, LENGTH, CutEnv, Ends, cut_envs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What is changed in an example: the env, the size of its observation, and the discount. Then it learns faster.
CHANGES = {
    "ppo_cleanrl": {
        'gym.make("CartPole-v1")': "make()",
        "nn.Linear(4, 64)": "nn.Linear(1, 64)",
        "0.99, 0.95": f"{GAMMA}, 0.95",
        "else 150": "else 40",
        "lr=1e-3": "lr=1e-2",
    },
    "collect": {
        'gym.make("CartPole-v1")': "make()",
        "nn.Linear(4, 64)": "nn.Linear(1, 64)",
        "0.99 *": f"{GAMMA} *",
        "else 150": "else 100",
        "lr=3e-3": "lr=2e-2",
    },
    "tianshou_dqn": {
        '["CartPole-v1"] * N': "[make] * N",
        "nn.Linear(4, 128)": "nn.Linear(1, 128)",
        "0.99 *": f"{GAMMA} *",
        "else 15": "else 4",
        "% 200": "% 50",
        "lr=1e-3": "lr=1e-2",
    },
}


def example(name: str, ends: Ends) -> dict[str, Any]:
    """Run an example with the env whose right value is known, and return the names that it has defined."""
    source = (EXAMPLES / f"{name}.py").read_text("utf-8")
    for old, new in CHANGES[name].items():
        assert old in source, f"{name}.py has no {old!r} any more"
        source = source.replace(old, new)
    firsts = iter(range(10**6))
    names = {"__name__": name, "__doc__": name, "make": lambda: CutEnv(ends, LENGTH - next(firsts) % LENGTH)}
    arguments, sys.argv = sys.argv, [name]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, name, "exec"), names)
    finally:
        sys.argv = arguments
    return names


def ppo_cleanrl(ends: Ends) -> float:
    return example("ppo_cleanrl", ends)["critic"](torch.ones(1)).item()


def collect(ends: Ends) -> float:
    return example("collect", ends)["model"].critic(torch.ones(1)).item()


def tianshou_dqn(ends: Ends) -> float:
    return example("tianshou_dqn", ends)["net"](torch.ones(1)).mean().item()


def cleanrl_ppo(ends: Ends, *, ours: bool) -> float:
    """Learn values with the advantages of CleanRL's ppo.py, which has one flag for both kinds of ends."""
    envs = (vecenv if ours else gym.vector).SyncVectorEnv(cut_envs(ends))
    critic = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.05)
    steps = 16
    next_obs, next_done = torch.as_tensor(envs.reset(seed=0)[0]), torch.zeros(ENVS)
    for _ in range(50):
        obs, (rewards, dones, values) = torch.zeros(steps, ENVS, 1), torch.zeros(3, steps, ENVS)
        for step in range(steps):
            obs[step], dones[step] = next_obs, next_done
            values[step] = critic(next_obs)[:, 0].detach()
            found, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
            rewards[step] = torch.as_tensor(reward)
            next_obs, next_done = torch.as_tensor(found), torch.as_tensor(terminated | truncated).float()
        next_value, advantages, last = critic(next_obs)[:, 0].detach(), torch.zeros(steps, ENVS), torch.zeros(ENVS)
        for t in reversed(range(steps)):
            real = 1.0 - (next_done if t == steps - 1 else dones[t + 1])
            following = next_value if t == steps - 1 else values[t + 1]
            delta = rewards[t] + GAMMA * following * real - values[t]
            advantages[t] = last = delta + GAMMA * 0.95 * real * last
        for _ in range(10):
            loss = (critic(obs)[..., 0] - advantages - values).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    envs.close()
    return critic(torch.ones(1)).item()
