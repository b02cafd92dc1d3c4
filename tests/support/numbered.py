"""Envs with episodes that identify themselves, to check recorded episodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from collector import Dataset, Episode
from collector.testing import check_data_set
from vecenv import nest

N, STEPS = 3, 40


class Numbered(gymnasium.Env):
    """Env that observes its number, the episode and the step. Episodes have 1 + (number + episode) % 4 steps."""

    def __init__(self, number: int, tree: bool = False, breaks_at: int = -1) -> None:
        box = spaces.Box(-1, 10_000, (3,), np.float32)
        self.tree, self.number, self.episode, self.taken, self.breaks_at = tree, number, -1, 0, breaks_at
        branches = {"a": box, "b": spaces.Tuple([spaces.Discrete(99)]), "c": spaces.Text(20, charset="0123456789 ")}
        self.observation_space = spaces.Dict(branches) if tree else box
        self.action_space = spaces.Dict({"x": spaces.Discrete(50)}) if tree else spaces.Discrete(50)

    def observe(self) -> Any:
        obs = np.array([self.number, self.episode, self.taken], np.float32)
        text = f"{self.number} {self.episode} {self.taken}"
        return {"a": obs, "b": (np.int64(self.taken),), "c": text} if self.tree else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.episode == self.breaks_at and self.taken == 1:
            raise RuntimeError("broken")
        over = self.taken == self.length(self.episode)
        self.last = int(action["x"] if self.tree else action)
        return self.observe(), float(self.last), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def length(self, episode: int) -> int:
        return 1 + (self.number + episode) % 4


def env_fns(tree: bool = False, **options: Any) -> list[Any]:
    return [partial(Numbered, number, tree, **options) for number in range(N)]


def actions(step: int, tree: bool = False) -> Any:
    drawn = np.random.default_rng(step).integers(0, 50, N)
    return {"x": drawn} if tree else drawn


def assert_whole(data: Dataset, complete: bool = True) -> dict[tuple[int, int], Episode]:
    """Check that each recorded episode is complete, and that its rewards are its actions. Return the episodes by env
    and number.
    """
    check_data_set(data.folder)
    assert data.complete is complete
    found = {}
    for episode in data:
        rows = nest.leaves(episode.obs)
        obs = next(rows)
        env, number = int(obs[0, 0]), int(obs[0, 1])
        length = 1 + (env + number) % 4
        assert obs[:, 2].tolist() == list(range(length + 1))
        assert (obs[:, :2] == obs[0, :2]).all()
        if isinstance(episode.obs, dict) and "c" in episode.obs:
            assert episode.obs["c"].tolist() == [f"{env} {number} {step}" for step in range(length + 1)]
        action = next(nest.leaves(episode.action))
        assert action.tolist() == episode.reward.tolist()
        assert len(episode) == length
        assert episode.terminated[-1] == (number % 2 == 0)
        assert episode.truncated[-1] == (number % 2 == 1)
        assert episode.env_id == env
        found[env, number] = episode
    assert len(found) == len(data)
    return found


def play(envs: Any, mode: AutoresetMode, steps: int = STEPS, tree: bool = False) -> None:
    envs.reset(seed=5)
    for step in range(steps):
        _, _, terminated, truncated, _ = envs.step(actions(step, tree))
        if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})
