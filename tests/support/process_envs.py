"""Envs with state in the process, which the envs of a worker share. Workers import this module."""

from __future__ import annotations

from typing import Any

from vecenv.testing import CountingEnv

SIMULATOR = """
import gymnasium
from vecenv.testing import CountingEnv

ticks = 0  # of the one simulator of the process, as in bluesky-gym 0.2.0


class Simulated(CountingEnv):
    def step(self, action):
        global ticks
        ticks += 1
        obs, _, *rest = super().step(action)
        return obs, float(ticks), *rest


gymnasium.register("Simulated-v0", "bluesky_gym.envs:Simulated")
"""
"""Source of a stand-in for the package bluesky_gym, which is in `ONE_PER_PROCESS`."""

open_emulators = 0


class OneEmulator(CountingEnv):
    """Env that refuses a second instance in its process, with the error of stable-retro 1.0.1."""

    def __init__(self, **options: Any) -> None:
        global open_emulators
        if open_emulators:
            raise RuntimeError(
                "Cannot create multiple emulator instances per process, make sure to call env.close() on each "
                "environment before creating a new one"
            )
        open_emulators += 1
        super().__init__(**options)

    def close(self) -> None:
        global open_emulators
        open_emulators -= 1
