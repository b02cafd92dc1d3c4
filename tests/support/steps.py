"""`Steps`: base class of small envs. Workers import this module, so it imports little."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Steps(gymnasium.Env):
    """Env whose episodes have `length` steps. Subclasses say what the env pays, observes and tells, in this order."""

    observation_space: Any = spaces.Box(0, 1e9, (1,))
    action_space: Any = spaces.Discrete(2)
    length = 1
    episode, taken = -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return self.observe(), self.tell()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.taken += 1
        reward = self.pay(action)
        return self.observe(), reward, self.taken == self.length, False, self.tell()

    def pay(self, action: Any) -> float:
        """Return the reward of a step."""
        return 1.0

    def observe(self) -> Any:
        """Return the observation of a reset or a step."""
        return np.array([self.taken], np.float32)

    def tell(self) -> dict[str, Any]:
        """Return the info of a reset or a step."""
        return {}
