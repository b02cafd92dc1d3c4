"""Whole episodes, cut out of batches in which they begin and end anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from collector.batch.arrays import join
from collector.batch.rollout import FlatRollout, Rollout
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
    """bool `(L,)`: True in the last row where the env reached a final state."""
    truncated: np.ndarray
    """bool `(L,)`: True in the last row where it was stopped before one."""
    env_id: int
    """The env that it ran in."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"Episode({len(self)} steps, total reward {self.total_reward:g}, env {self.env_id})"

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

    An episode that a batch leaves unfinished is kept, and comes out of the batch that finishes it. One that breaks off
    because its env failed is dropped.

    Example::

        cutter = EpisodeCutter()
        for batch in collector:
            for episode in cutter.cut(batch):     # by the time of their end, then by env
                save(episode)
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[Episode]] = {}

    @property
    def unfinished_steps(self) -> int:
        """Steps of episodes that have begun and not ended."""
        return sum(len(part) for parts in self._parts.values() for part in parts)

    def cut(self, batch: Rollout | FlatRollout) -> list[Episode]:
        """The episodes that end in this batch, by the time of their end (of a flat batch: by env).

        Their arrays are copies.
        """
        whole: list[tuple[int, Episode]] = []
        pieces = _pieces_of_flat(batch) if isinstance(batch, FlatRollout) else _pieces(batch)
        for traj_id, time, part, ends in pieces:
            self._parts.setdefault(traj_id, []).append(part)
            if ends:
                whole.append((time, _join(self._parts.pop(traj_id))))
        for traj_id in batch.broken_ids.tolist():
            self._parts.pop(traj_id, None)
        return [episode for _, episode in sorted(whole, key=lambda each: each[0])]


Piece = tuple[int, int, Episode, bool]
"""The id of a trajectory, the time of its last step here, its steps as views of the batch, and whether it ends."""


def _pieces(batch: Rollout) -> Iterator[Piece]:
    """By env, then by time."""
    finals = {at: k for k, at in enumerate(zip(batch.final_env.tolist(), batch.final_time.tolist(), strict=True))}
    collected = (batch.mask | batch.broken).sum(1).tolist()
    for env, length in enumerate(collected):
        ids = batch.traj_ids[env, :length]
        start = 0
        for stop in (np.flatnonzero(np.diff(ids, append=-1)) + 1).tolist():
            final = finals.get((env, stop - 1))
            last_obs = None if final is None else nest.take(batch.final_obs, slice(final, final + 1))
            at = (env, slice(start, stop))
            obs = nest.take(batch.all_obs, at)
            yield int(ids[start]), stop, _episode(batch, at, obs, last_obs, env), final is not None
            start = stop


def _pieces_of_flat(batch: FlatRollout) -> Iterator[Piece]:
    start = 0
    for stop in (np.flatnonzero(np.diff(batch.traj_ids, append=-1)) + 1).tolist():
        ends = bool(batch.done[stop - 1])
        tail = int(np.searchsorted(batch.tail_rows, stop - 1))
        last_obs = nest.take(batch.tail_obs, slice(tail, tail + 1)) if ends else None
        at, env = slice(start, stop), int(batch.env_ids[start])
        yield int(batch.traj_ids[start]), 0, _episode(batch, at, nest.take(batch.obs, at), last_obs, env), ends
        start = stop


def _episode(batch: Rollout | FlatRollout, at: Any, obs: Any, last_obs: Any, env: int) -> Episode:
    """The steps at an index, with their observations and `last_obs`, where there is one."""
    obs = obs if last_obs is None else join([obs, last_obs])
    return Episode(obs, batch.action[at], batch.reward[at], batch.terminated[at], batch.truncated[at], env)


def _join(parts: list[Episode]) -> Episode:
    """Consecutive parts of an episode as one, in memory of its own."""
    names = ("obs", "action", "reward", "terminated", "truncated")
    columns = {name: join([getattr(part, name) for part in parts]) for name in names}
    return Episode(**columns, env_id=parts[0].env_id)
