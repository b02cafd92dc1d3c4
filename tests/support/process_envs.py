"""Envs with state in the process, which the envs of a worker share. Workers import this module."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIMULATOR = """
import gymnasium
import numpy as np
from gymnasium import spaces

ticks = 0  # of the one simulator of the process, as in bluesky-gym 0.2.0


class Simulated(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)

    def _observed(self):
        global ticks
        ticks += 1
        return np.array([ticks], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action):
        obs = self._observed()
        return obs, float(obs[0]), bool(ticks % 5 == 0), False, {}


gymnasium.register("Simulated-v0", "bluesky_gym.envs:Simulated")
"""
"""Source of a stand-in for the package bluesky_gym, which is in `ONE_PER_PROCESS`."""

steps = 0
open_emulators = 0


class CountsInModule(gymnasium.Env):
    """Env whose reward counts the steps of all envs in the process."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        global steps
        steps += 1
        return np.zeros(1, np.float32), float(steps), steps % 5 == 0, False, {}


class OneEmulator(CountsInModule):
    """Env that refuses a second instance in its process, with the error of stable-retro 1.0.1."""

    def __init__(self) -> None:
        global open_emulators
        if open_emulators:
            raise RuntimeError(
                "Cannot create multiple emulator instances per process, make sure to call env.close() on each "
                "environment before creating a new one"
            )
        open_emulators += 1

    def close(self) -> None:
        global open_emulators
        open_emulators -= 1
