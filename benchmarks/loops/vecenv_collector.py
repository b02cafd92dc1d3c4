"""Our collectors: batches of 64 steps per env, and two epochs of Adam on each batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import torch

import collector
import vecenv
from benchmarks.loops.small_policy import STEPS, Learner, Policy


def collect(
    vector_env: str,
    env_id: str,
    num_envs: int,
    kind: str = "SyncDataCollector",
    threads: int | None = None,
    **env_kwargs: Any,
) -> Iterator[tuple[int, float]]:
    if threads is not None:
        torch.set_num_threads(threads)  # only in the lane that shows how good the default is
    env_fns = [partial(gym.make, env_id, **env_kwargs)] * num_envs
    policy = Policy()
    learner = Learner(policy)
    make = partial(getattr(collector, kind), policy=policy, frames_per_batch=STEPS * num_envs, device="cpu")
    envs: Any = env_fns if vector_env == "auto" else getattr(vecenv, vector_env)(env_fns)
    with make(envs, backend="auto") if vector_env == "auto" else make(envs) as batches:
        for batch in batches:
            learning_began = time.perf_counter()
            obs, action, reward = batch.obs.reshape(-1, 4), batch.action.reshape(-1), batch.reward.reshape(-1)
            learner.two_epochs(obs, action, reward.float())
            yield len(obs), time.perf_counter() - learning_began


def learn_alone(num_envs: int) -> Iterator[tuple[int, float]]:
    """Learn from random batches of the same size, in a process without envs."""
    learner, frames = Learner(Policy()), STEPS * num_envs
    while True:
        obs, action, reward = torch.randn(frames, 4), torch.randint(2, (frames,)), torch.ones(frames)
        learning_began = time.perf_counter()
        learner.two_epochs(obs, action, reward)
        yield frames, time.perf_counter() - learning_began
