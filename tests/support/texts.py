"""Envs whose actions and observations are texts."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces


class Echo(gymnasium.Env):
    """Env that returns the action as the next observation, as games of text do. An episode has 5 steps."""

    observation_space = spaces.Text(1000, min_length=0)
    action_space: spaces.Space[Any] = spaces.Text(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return "", {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return said(action), float(len(action)), self.steps == 5, False, {}


class Acts(Echo):
    """`Echo` whose action is a text and the number of times to say the text."""

    action_space = spaces.Dict({"say": spaces.Text(1000), "gear": spaces.Discrete(9)})


def said(action: Any) -> str:
    return str(action["say"]) * int(action["gear"]) if isinstance(action, dict) else str(action)
