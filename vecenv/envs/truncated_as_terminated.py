"""A wrapper for algorithms that do not distinguish terminated from truncated."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs


class TruncatedAsTerminated(gymnasium.Wrapper, RecordConstructorArgs):
    """Reports an episode that was cut off as terminated too (as tianshou's wrapper): `terminated or truncated`.

    Goes around an env that cuts episodes off, such as `gymnasium.wrappers.TimeLimit`. `truncated` stays what it is.

    >>> env = TruncatedAsTerminated(gymnasium.make("Pendulum-v1", max_episode_steps=1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(env.action_space.sample())[2:4]
    (True, True)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The env's own step, with `terminated` true at every end."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info
