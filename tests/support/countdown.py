"""Envs of the collector's tests, in a module that workers import."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Countdown(gymnasium.Env):
    """Env with episodes of `length` steps. The observation is (episode, step), so tests notice a wrong row."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Box(-1, 1000, (2,), np.int64)
        self.action_space = spaces.Discrete(3)
        self.length, self.episode, self.taken = length, -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return np.array([self.episode, 0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.taken += 1
        over = self.taken == self.length
        return np.array([self.episode, self.taken]), float(action), over, False, {}


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

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {"taken": -1, "vector": np.zeros(3, np.float32)}

    def step(self, action: Any) -> Any:
        obs, reward, over, *rest, info = super().step(action)
        info |= {"taken": self.taken, "vector": np.full(3, self.taken, np.float32), "text": "a", "object": {1}}
        return (obs, reward, over, *rest, info | {"success": True} if over else info)


MOVE = spaces.Dict(gear=spaces.Discrete(3), wheel=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))))


class Drives(gymnasium.Env):
    """Env that observes its last action, which must be in the action space. Episodes have five steps."""

    observation_space = spaces.Box(-10, 10, (3,))
    action_space = MOVE

    def __init__(self, breaks: bool = False) -> None:
        self.breaks = breaks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.move(action["gear"], action["wheel"][0])

    def move(self, gear: Any, wheel: Any) -> Any:
        self.steps += 1
        obs = np.array([gear, *wheel], np.float32)
        return obs, np.nan if self.breaks else float(gear), self.steps == 5, False, {}


class BreaksOnce(Countdown):
    """Countdown that fails in step `at` of episode `episode_at`."""

    def __init__(self, length: int, episode_at: int, at: int) -> None:
        super().__init__(length)
        self.episode_at, self.at = episode_at, at

    def step(self, action: Any) -> Any:
        if (self.episode, self.taken) == (self.episode_at, self.at):
            raise OverflowError("the env broke")
        return super().step(action)
