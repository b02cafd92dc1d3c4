"""Transforms that count along an episode: StepCounter, TimeLimit, RewardSum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.engine.arguments.checks import check_count
from vecenv.transforms.arrays import Array, EnvRows, cast, like, zeros
from vecenv.transforms.transform import NoPartTransform, Rows, with_part


class TimeLimit(NoPartTransform):
    """Truncates an episode after `max_episode_steps` steps (as gymnasium's TimeLimit).

    In a TransformedVectorEnv the worker does not know of that end: see there.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), TimeLimit(1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[2:4]
    (False, True)
    """

    has_state = True
    ends_episodes = True

    def __init__(self, max_episode_steps: int) -> None:
        super().__init__()
        self.max_episode_steps = check_count("max_episode_steps", max_episode_steps)
        self._counts = np.zeros(1, np.int64)

    def clear(self) -> None:
        self._counts = np.zeros(self.num_envs, np.int64)

    def reset(self, rows: Rows) -> None:
        self._counts[rows.ids] = 0

    def step(self, rows: Rows) -> None:
        self._counts[rows.ids] += 1
        truncate(rows, self._counts[rows.ids] >= self.max_episode_steps)

    def __repr__(self) -> str:
        return f"TimeLimit({self.max_episode_steps})"


class StepCounter(NoPartTransform):
    """Adds the number of steps since the reset to the observation: int64 (1,) (as torchrl's StepCounter).

    An observation that is no dict becomes one, with the key "observation".

    Arguments:
        max_steps: truncate the episode after that many steps; None: never.
        step_count_key: the key of the number.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), StepCounter())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["step_count"]
    array([1])
    """

    has_state = True

    def __init__(self, max_steps: int | None = None, step_count_key: str = "step_count") -> None:
        super().__init__()
        self.max_steps = None if max_steps is None else check_count("max_steps", max_steps)
        self.ends_episodes = max_steps is not None
        self.step_count_key = step_count_key
        self._counts = np.zeros(1, np.int64)

    def clear(self) -> None:
        self._counts = np.zeros(self.num_envs, np.int64)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return with_entry(space, self.step_count_key, spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64), self)

    def reset(self, rows: Rows) -> None:
        self._counts[rows.ids] = 0
        self._add(rows)

    def step(self, rows: Rows) -> None:
        self._counts[rows.ids] += 1
        if self.max_steps is not None:
            truncate(rows, self._counts[rows.ids] >= self.max_steps)
        self._add(rows)

    def _add(self, rows: Rows) -> None:
        counts = like(self._counts[rows.ids][:, None], first_leaf(rows.obs))
        rows.obs = with_part(rows.obs, (self.step_count_key,), counts)


class RewardSum(NoPartTransform):
    """Adds the sum of rewards since the reset to the observation: float32 (1,) (as torchrl's RewardSum).

    An observation that is no dict becomes one, with the key "observation". The key is the only one of `out_keys`,
    "episode_reward" by default. Sums are kept in the dtype of the rewards. ValueError for rewards that are vectors.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), RewardSum())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["episode_reward"]
    array([1.], dtype=float32)
    """

    has_state = True

    def __init__(self, in_keys: Sequence[str] | None = None, out_keys: Sequence[str] | None = None) -> None:
        super().__init__()
        if in_keys is not None and list(in_keys) != ["reward"]:
            raise ValueError(f'RewardSum sums "reward" alone, got in_keys={in_keys!r}')
        names = ["episode_reward"] if out_keys is None else list(out_keys)
        if len(names) != 1:
            raise ValueError(f"RewardSum writes one entry, got out_keys={out_keys!r}")
        self.out_key = names[0]
        self._sums = EnvRows(1)

    def clear(self) -> None:
        self._sums = EnvRows(self.num_envs)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return with_entry(space, self.out_key, spaces.Box(-np.inf, np.inf, (1,), np.float32), self)

    def reset(self, rows: Rows) -> None:
        self._sums.clear(rows.ids)
        self._add(rows, zeros((len(rows.ids),), first_leaf(rows.obs), "float32"))

    def step(self, rows: Rows) -> None:
        if rows.reward.ndim != 1:
            raise ValueError(f"RewardSum needs rewards that are numbers, got the shape {tuple(rows.reward.shape[1:])}")
        before = self._sums.take(rows.ids)
        sums = rows.reward if before is None else before + rows.reward
        self._sums.put(rows.ids, sums)
        self._add(rows, sums)

    def _add(self, rows: Rows, sums: Array) -> None:
        rows.obs = with_part(rows.obs, (self.out_key,), cast(sums, "float32")[:, None])


def truncate(rows: Rows, over: np.ndarray) -> None:
    """Mark these rows as truncated."""
    rows.truncated = rows.truncated | like(over, rows.truncated)


def first_leaf(obs: Any) -> Array:
    """An array of the observation."""
    return next(nest.leaves(obs))


def with_entry(space: Any, key: str, entry: spaces.Space[Any], transform: Any) -> spaces.Space[Any]:
    """The space with one more entry; ValueError where it has that already or cannot have it."""
    if isinstance(space, spaces.Tuple):
        raise ValueError(f"{transform} adds an entry to the observation, which cannot be a Tuple")
    if isinstance(space, spaces.Dict) and key in space.spaces:
        raise ValueError(f"{transform} adds {key!r}, which the observation has already; give it another key")
    added: spaces.Space[Any] = with_part(space, (key,), entry)
    return added
