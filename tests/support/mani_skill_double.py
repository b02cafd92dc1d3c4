"""Vector env that returns what `ManiSkillVectorEnv` of mani-skill 3.0.1 returns, without its simulator and its GPU."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.simulators import Simulator

NAMES = {"final_obs": "final_observation", "_final_obs": "_final_observation"}


class ManiSkillDouble(Simulator):
    """Two envs of tensors, whose infos have a dict `episode` without a return. `get_attr` always raises."""

    def __init__(self) -> None:
        super().__init__(torch, 2, more=True)

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        return (*result, {NAMES.get(name, name): column for name, column in infos.items()})

    def get_attr(self, name: str) -> Any:
        raise RuntimeError("To get an attribute get it from the .env property of this object")
