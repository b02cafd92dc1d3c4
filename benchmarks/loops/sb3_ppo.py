"""PPO of Stable-Baselines3: 2,048 frames per iteration, then 10 epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.loops.vector_envs import make_sb3_envs

FRAMES = 2048


class RolloutEnd(BaseCallback):
    """Callback that records when the rollout ends and learning begins."""

    def _on_rollout_end(self) -> None:
        self.at = time.perf_counter()

    def _on_step(self) -> bool:
        return True


def ppo(vector_env: str, env_id: str, num_envs: int, **env_kwargs: Any) -> Iterator[tuple[int, float]]:
    envs = make_sb3_envs(vector_env, env_id, num_envs, **env_kwargs)
    try:
        model = PPO("MlpPolicy", envs, n_steps=FRAMES // num_envs)
        rollout_end = RolloutEnd()
        while True:
            model.learn(FRAMES, callback=rollout_end, reset_num_timesteps=False)
            yield FRAMES, time.perf_counter() - rollout_end.at
    finally:
        envs.close()
