"""Step HalfCheetah-v5, whose infos have four numbers in every step, with and without the infos."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

import vecenv
from benchmarks.loops.vector_envs import GYMNASIUM

ENV_ID = "HalfCheetah-v5"


class WithoutInfos(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        return *self.env.step(action)[:4], {}


def make_env(infos: bool) -> gym.Env[Any, Any]:
    env = gym.make(ENV_ID)
    return env if infos else WithoutInfos(env)


def draw(num_envs: int) -> Iterator[np.ndarray]:
    return cycle(np.random.default_rng(0).uniform(-1, 1, (64, num_envs, 6)).astype(np.float32))


def step_gymnasium(vector_env: str, num_envs: int) -> Iterator[tuple[int, float]]:
    envs = GYMNASIUM[vector_env](ENV_ID, num_envs)
    try:
        envs.reset(seed=0)
        for action in draw(num_envs):
            envs.step(action)
            yield num_envs, 0.0
    finally:
        envs.close()


def step_vecenv(vector_env: str, num_envs: int, infos: bool) -> Iterator[tuple[int, float]]:
    with getattr(vecenv, vector_env)([partial(make_env, infos)] * num_envs) as venv:
        venv.reset(seed=0)
        for action in draw(num_envs):
            venv.step(action, autoreset=True)
            yield num_envs, 0.0
