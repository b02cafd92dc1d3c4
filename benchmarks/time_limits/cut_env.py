"""An env whose right value is known: the reward is 1 in every step, and every episode is cut after 5 steps."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

GAMMA = 0.9
LENGTH, ENVS = 5, 4
RIGHT = 1 / (1 - GAMMA)
"""Value of an endless stream of rewards of 1."""
MOST = sum(GAMMA**k for k in range(LENGTH))
"""Highest discounted return within an episode."""
Ends = Literal["truncated", "terminated"]


class CutEnv(gym.Env[np.ndarray, Any]):
    """Env with a constant observation and the reward 1. The action has no effect.

    Args:
        ends: flag of the last step of an episode.
        first: number of steps of the first episode, so that several envs end in different rounds.
        continuous: the action space is a Box instead of a Discrete.
        late: the observation is the number of the step, one-hot, and only the last step has a reward, 10.
    """

    def __init__(self, ends: Ends = "truncated", first: int = LENGTH, *, continuous: bool = False, late: bool = False):
        self.ends, self.late, self.left = ends, late, first
        self.observation_space = gym.spaces.Box(0, 1, (LENGTH + 1 if late else 1,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32) if continuous else gym.spaces.Discrete(2)
        self.reset_again = False

    def _obs(self) -> np.ndarray:
        return np.eye(LENGTH + 1, dtype=np.float32)[LENGTH - self.left] if self.late else np.ones(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self.reset_again:
            self.left = LENGTH
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        over = self.left <= 0
        self.reset_again |= over
        reward = 10.0 * over if self.late else 1.0
        return self._obs(), reward, over and self.ends == "terminated", over and self.ends == "truncated", {}


def cut_envs(ends: Ends, n: int = ENVS, **options: Any) -> list[Any]:
    """Return the functions that make the envs, whose episodes end in different rounds."""
    return [partial(CutEnv, ends, LENGTH - i, **options) for i in range(n)]


# Libraries that make envs by an id import this module in their workers: "benchmarks.time_limits.cut_env:Cut-..."
for _ends in ("truncated", "terminated"):
    gym.register(
        f"Cut-{_ends}-v0",
        CutEnv,
        vector_entry_point=f"vecenv.facades.make_vec:Cut-{_ends}-v0",
        kwargs={"ends": _ends},
        disable_env_checker=True,
    )
