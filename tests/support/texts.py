"""Envs whose actions and observations are texts."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from tests.support.steps import Steps


class Echo(Steps):
    """Env that returns the action as the next observation, as games of text do."""

    observation_space = spaces.Text(1000, min_length=0)
    action_space = spaces.Text(1000)
    length = 5

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action)
        self.heard = said(action)
        return float(len(action))

    def observe(self) -> str:
        return self.heard if self.taken else ""


class Acts(Echo):
    """`Echo` whose action is a text and the number of times to say the text."""

    action_space = spaces.Dict({"say": spaces.Text(1000), "gear": spaces.Discrete(9)})


def said(action: Any) -> str:
    return str(action["say"]) * int(action["gear"]) if isinstance(action, dict) else str(action)
