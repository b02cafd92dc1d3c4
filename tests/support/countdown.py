"""Envs of the collector's tests, in a module that workers import."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.support.steps import Steps


class Countdown(Steps):
    """Env with episodes of `length` steps. The observation is (episode, step), so tests notice a wrong row."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Box(-1, 1000, (2,), np.int64)
        self.action_space = spaces.Discrete(3)
        self.length = length

    def pay(self, action: Any) -> float:
        return float(action)

    def observe(self) -> Any:
        return np.array([self.episode, self.taken])


class DictObs(gymnasium.ObservationWrapper):
    """Countdown with its observations in a dict and a tuple."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"a": env.observation_space, "b": spaces.Tuple([env.observation_space])})

    def observation(self, observation: Any) -> Any:
        return {"a": observation, "b": (observation + 1,)}


class Breaks(Countdown):
    def step(self, action: Any) -> Any:
        raise OverflowError("the env broke")


class Stops(Countdown):
    def step(self, action: Any) -> Any:
        raise StopIteration("the env stopped")


class Closes(Countdown):
    """Countdown that counts the closed envs of its class."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


class PaysTwo(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return np.array([1.0, 2.0])


class Tells(Countdown):
    """Countdown with infos: the step, a flag at the end, a vector, a text and a set. Infos of a reset have different
    values.
    """

    def tell(self) -> dict[str, Any]:
        if not self.taken:
            return {"taken": -1, "vector": np.zeros(3, np.float32)}
        info = {"taken": self.taken, "vector": np.full(3, self.taken, np.float32), "text": "a", "object": {1}}
        return info | {"success": True} if self.taken == self.length else info


MOVE = spaces.Dict(gear=spaces.Discrete(3), wheel=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))))


class Drives(Steps):
    """Env that observes its last action, which must be in the action space."""

    observation_space = spaces.Box(-10, 10, (3,))
    action_space = MOVE
    length = 5

    def __init__(self, breaks: bool = False) -> None:
        self.breaks = breaks

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return self.move(action["gear"], action["wheel"][0])

    def move(self, gear: Any, wheel: Any) -> float:
        self.last = np.array([gear, *wheel], np.float32)
        return np.nan if self.breaks else float(gear)

    def observe(self) -> Any:
        return self.last if self.taken else np.zeros(3, np.float32)


class BreaksOnce(Countdown):
    """Countdown that fails in step `at` of episode `episode_at`."""

    def __init__(self, length: int, episode_at: int, at: int) -> None:
        super().__init__(length)
        self.episode_at, self.at = episode_at, at

    def step(self, action: Any) -> Any:
        if (self.episode, self.taken) == (self.episode_at, self.at):
            raise OverflowError("the env broke")
        return super().step(action)
