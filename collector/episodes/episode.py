"""Whole episodes, cut out of batches in which they begin and end anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collector.batch.arrays import join
from collector.batch.rollout import FlatRollout, Rollout
from collector.batch.step_extras import EPISODE_SEED
from vecenv import nest


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """One episode from a reset to its end: L steps and L + 1 observations, as numpy arrays."""

    obs: Any
    """`(L + 1, ...)`, or a dict or tuple of such: what each action was chosen for, then the last observation."""
    action: Any
    """`(L, ...)`, or a dict or tuple of such."""
    reward: np.ndarray
    """float64 `(L,)`; `(L, m)` where rewards are vectors."""
    terminated: np.ndarray
    """bool `(L,)`: True in the last row where the env reached a final state."""
    truncated: np.ndarray
    """bool `(L,)`: True in the last row where it was stopped before one."""
    env_id: int
    """The env that it ran in."""
    number: int = -1
    """Its number in `episode_seeds` of the collector; -1: it has none."""
    seed: int | None = None
    """The seed with which it was reset; None: it is not known."""

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
        arrays = [*nest.leaves(self.obs), *nest.leaves(self.action), self.reward, self.terminated, self.truncated]
        return sum(array.nbytes for array in arrays)


class EpisodeCutter:
    """Cuts batches of one collector into whole episodes.

    An episode that is unfinished at the end of a batch is kept, and returned with the batch that ends it: at most one
    for each env, in memory of its own. One that breaks off because its env failed, or that is abandoned (the env is in
    another one), is discarded.

    Example::

        cutter = EpisodeCutter()
        for batch in collector:
            for episode in cutter.cut(batch):     # by the time of their end, then by env
                save(episode)
    """

    def __init__(self) -> None:
        self._unfinished: dict[int, tuple[int, list[Episode]]] = {}
        """By env: the id of its episode, and the parts of it that have come."""

    @property
    def unfinished_steps(self) -> int:
        """Steps of episodes that have begun and not ended."""
        return sum(len(part) for _, parts in self._unfinished.values() for part in parts)

    def cut(self, batch: Rollout | FlatRollout) -> list[Episode]:
        """The episodes that end in this batch, by the time of their end (of a flat batch: by env).

        Their arrays are copies.
        """
        ended: list[tuple[int, Episode]] = []
        flat = batch.flatten()
        times = np.zeros(flat.frames, np.int64) if batch is flat else np.nonzero(batch.mask)[1]
        start, done, broken = 0, flat.done, set(batch.broken_ids.tolist())
        self._unfinished = {env_id: kept for env_id, kept in self._unfinished.items() if kept[0] not in broken}
        for stop in (np.flatnonzero(np.diff(flat.traj_ids, append=-1)) + 1).tolist():
            env_id, traj_id = int(flat.env_ids[start]), int(flat.traj_ids[start])
            kept_id, parts = self._unfinished.pop(env_id, (traj_id, []))
            if traj_id not in broken:
                parts = parts if kept_id == traj_id else []
                part = _part(flat, slice(start, stop), bool(done[stop - 1]))
                if done[stop - 1]:
                    ended.append((int(times[stop - 1]), _join([*parts, part])))
                else:  # as a copy: a view would keep the whole batch
                    self._unfinished[env_id] = traj_id, [*parts, _join([part])]
            start = stop
        return [episode for _, episode in sorted(ended, key=lambda each: each[0])]


def _part(flat: FlatRollout, at: slice, ends: bool) -> Episode:
    """The steps of an episode in a batch, as views of it; with the last observation where it ends."""
    obs = nest.take(flat.obs, at)
    if ends:
        tail = int(np.searchsorted(flat.tail_rows, at.stop - 1))
        obs = join([obs, nest.take(flat.tail_obs, slice(tail, tail + 1))])
    columns = nest.take(flat.action, at), flat.reward[at], flat.terminated[at], flat.truncated[at]
    env_id, seeds = int(flat.env_ids[at.start]), flat.extras.get(EPISODE_SEED)
    if seeds is None:
        return Episode(obs, *columns, env_id)
    return Episode(obs, *columns, env_id, int(flat.traj_ids[at.start]), int(seeds[at.start]))


def _join(parts: list[Episode]) -> Episode:
    """Consecutive parts of an episode as one, in new memory."""
    names = ("obs", "action", "reward", "terminated", "truncated")
    columns = {name: join([getattr(part, name) for part in parts]) for name in names}
    first = parts[0]
    return Episode(**columns, env_id=first.env_id, number=first.number, seed=first.seed)
