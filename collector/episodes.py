"""Whole episodes, cut out of batches in which they begin and end anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collector.rollout import Rollout
from vecenv import nest


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """One episode from a reset to its end: L steps and L + 1 observations, as numpy arrays."""

    obs: Any
    """`(L + 1, ...)`, or a dict or tuple of such: what each action was chosen for, then the last observation."""
    action: np.ndarray
    """`(L, ...)`."""
    reward: np.ndarray
    """float64 `(L,)`; `(L, m)` where rewards are vectors."""
    terminated: np.ndarray
    """bool `(L,)`: True in the last row where the environment reached a final state."""
    truncated: np.ndarray
    """bool `(L,)`: True in the last row where it was stopped before one."""
    env_id: int
    """The environment that it ran in."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Episode({len(self)} steps, total reward {self.total_reward:g}, environment {self.env_id})"

    @property
    def total_reward(self) -> float:
        """The sum of the rewards: the episode's return."""
        return float(self.reward.sum())

    @property
    def nbytes(self) -> int:
        """Size of its arrays."""
        arrays = [*nest.leaves(self.obs), self.action, self.reward, self.terminated, self.truncated]
        return sum(array.nbytes for array in arrays)


class EpisodeCutter:
    """Cuts batches of one collector into whole episodes.

    An episode that a batch leaves unfinished is kept, and comes out of the batch that finishes it.

    Example::

        cutter = EpisodeCutter(venv.env_num)
        for batch in collector:
            for episode in cutter.cut(batch):     # by the time of their end, then by environment
                save(episode)
    """

    def __init__(self, env_num: int) -> None:
        self._parts: list[list[Episode]] = [[] for _ in range(env_num)]

    @property
    def unfinished_steps(self) -> int:
        """Steps of episodes that have begun and not ended."""
        return sum(len(part) for parts in self._parts for part in parts)

    def cut(self, batch: Rollout) -> list[Episode]:
        """The episodes that end in this batch, by the time of their end. Their arrays are copies."""
        start = np.zeros(len(self._parts), np.int64)
        episodes = []
        for k, (env, time) in enumerate(zip(batch.final_env.tolist(), batch.final_time.tolist(), strict=True)):
            end = _slice(batch, env, start[env], time + 1, nest.take(batch.final_obs, slice(k, k + 1)))
            episodes.append(_join([*self._parts[env], end]))
            self._parts[env] = []
            start[env] = time + 1
        for env, length in enumerate(batch.mask.sum(1).tolist()):
            if start[env] < length:
                self._parts[env].append(_slice(batch, env, start[env], length, None))
        return episodes


def _slice(batch: Rollout, env: int, start: int, stop: int, last_obs: Any) -> Episode:
    """Steps of one environment, with their observations and `last_obs`, where there is one. Views of the batch."""
    at = (env, slice(start, stop))
    obs = nest.take(batch.all_obs, at)
    if last_obs is not None:
        obs = _concatenate([obs, last_obs])
    return Episode(obs, batch.action[at], batch.reward[at], batch.terminated[at], batch.truncated[at], env)


def _join(parts: list[Episode]) -> Episode:
    """Consecutive parts of an episode as one, in memory of its own."""
    return Episode(
        obs=_concatenate([part.obs for part in parts]),
        action=np.concatenate([part.action for part in parts]),
        reward=np.concatenate([part.reward for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        env_id=parts[0].env_id,
    )


def _concatenate(trees: list[Any]) -> Any:
    """Trees of `(k, ...)` arrays, joined along their first dimension."""
    columns = zip(*(nest.leaves(tree) for tree in trees), strict=True)
    joined = iter([np.concatenate(column) for column in columns])
    return nest.map(lambda _: next(joined), trees[0])
