"""Vector env that returns what `ManiSkillVectorEnv` of mani-skill 3.0.1 returns, without its simulator and its GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

SIZE = 3


class ManiSkillDouble(VectorEnv[Any, Any, Any]):
    """Env `i` has episodes of `length + i` steps. It observes `i`, its episode and its step, and is truncated.

    All results are tensors. Observations, rewards and flags are new in each step. `elapsed_steps` is the simulator's
    buffer, which the next step changes.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 2, length: int = 3, record_metrics: bool = False) -> None:
        self.num_envs, self.record_metrics = num_envs, record_metrics
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.ids = torch.arange(num_envs)
        self.lengths = length + self.ids
        self.elapsed_steps = torch.zeros(num_envs, dtype=torch.int32)
        self.episodes, self.returns = torch.full((num_envs,), -1), torch.zeros(num_envs)

    def observe(self) -> torch.Tensor:
        return torch.stack([self.ids, self.episodes, self.elapsed_steps], 1).float()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        which = self.ids if options is None else options.get("env_idx", self.ids)
        self.elapsed_steps[which], self.returns[which] = 0, 0
        self.episodes[which] += 1
        return self.observe(), {"reconfigure": False, "elapsed_steps": self.elapsed_steps}

    def step(self, actions: Any) -> Any:
        self.elapsed_steps += 1
        obs, rewards = self.observe(), torch.as_tensor(actions)[:, 0] + 1
        terminated, truncated = torch.zeros(self.num_envs, dtype=torch.bool), self.elapsed_steps >= self.lengths
        infos: dict[str, Any] = {"elapsed_steps": self.elapsed_steps, "success": obs[:, 2] > 1}
        if self.record_metrics:
            self.returns += rewards
            length = self.elapsed_steps.clone()
            infos["episode"] = {"return": self.returns.clone(), "episode_len": length, "reward": self.returns / length}
        if truncated.any():
            final = {key: _cloned(value) for key, value in infos.items()}
            last, (obs, infos) = obs.clone(), self.reset(options={"env_idx": self.ids[truncated]})
            infos |= {"final_observation": last, "final_info": final, "_final_info": truncated}
            infos |= {"_final_observation": truncated, "_elapsed_steps": truncated}
        return obs, rewards, terminated, truncated, infos

    def get_attr(self, name: str) -> Any:
        raise RuntimeError("To get an attribute get it from the .env property of this object")

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)


def _cloned(value: Any) -> Any:
    return {key: each.clone() for key, each in value.items()} if isinstance(value, dict) else value.clone()
