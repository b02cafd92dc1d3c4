"""TorchRL's collector on its own envs: batches of 64 steps per env, and two epochs of Adam on each batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import torchrl.envs
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper

from benchmarks.loops.small_policy import STEPS, Learner, Policy


def make_env(env_id: str, env_kwargs: dict[str, Any]) -> GymWrapper:
    return GymWrapper(gym.make(env_id, **env_kwargs), categorical_action_encoding=True)


def collect(vector_env: str, env_id: str, num_envs: int, **env_kwargs: Any) -> Iterator[tuple[int, float]]:
    envs = getattr(torchrl.envs, vector_env)(num_envs, partial(make_env, env_id, env_kwargs))
    policy = Policy()
    learner = Learner(policy)
    module = TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    batches = Collector(envs, module, frames_per_batch=STEPS * num_envs, total_frames=-1)
    try:
        for batch in batches:
            learning_began = time.perf_counter()
            obs, action = batch["observation"].reshape(-1, 4), batch["action"].reshape(-1)
            learner.two_epochs(obs, action, batch["next", "reward"].reshape(-1))
            yield len(obs), time.perf_counter() - learning_began
    finally:
        batches.shutdown()
