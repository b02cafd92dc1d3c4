"""Functions that make the vector env of a loop, for each candidate, with default settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

import vecenv

GYMNASIUM: dict[str, Callable[..., gym.vector.VectorEnv[Any, Any, Any]]] = {
    "gymnasium Sync": partial(gym.make_vec, vectorization_mode="sync"),
    "gymnasium Async": partial(gym.make_vec, vectorization_mode="async"),
    "vecenv Dummy": partial(vecenv.make_vec, backend="dummy"),
    "vecenv Shmem": partial(vecenv.make_vec, backend="shmem"),  # AsyncVectorEnv
    "vecenv auto": partial(vecenv.make_vec, backend="auto"),
}
"""Functions that take an env id, the number of envs, and as keywords `wrappers` and the env's arguments."""


def make_sb3_envs(vector_env: str, env_id: str, num_envs: int, **env_kwargs: Any) -> Any:
    """Make a vector env for PPO of Stable-Baselines3. Each env is in a `Monitor`, as with SB3's own helper."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    import vecenv.sb3

    if vector_env == "vecenv auto":
        chosen = vecenv.make_vec(env_id, num_envs, backend="auto", wrappers=[Monitor], **env_kwargs)
        envs = vecenv.SB3VecEnv(chosen.venv)
        envs.chosen = chosen  # the garbage collector then closes the envs
        return envs
    classes = {
        "SB3 Dummy": DummyVecEnv,
        "SB3 Subproc": SubprocVecEnv,
        "vecenv Dummy": vecenv.sb3.DummyVecEnv,
        "vecenv Shmem": vecenv.sb3.SubprocVecEnv,  # SB3VecEnv(ShmemVectorEnv(env_fns))
    }
    return make_vec_env(env_id, num_envs, env_kwargs=env_kwargs, vec_env_cls=classes[vector_env])
