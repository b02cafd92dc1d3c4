"""Episodes that span several batches: their ids, and their returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout, Runs, rewards_of, runs_of
from vecenv import nest


def ends_of(batch: Rollout | FlatRollout, mask: np.ndarray, runs: Runs) -> np.ndarray:
    """Return a mask of the runs that end their episode."""
    return nest.as_array(batch.terminated | batch.truncated)[mask][runs.stop - 1]


class UnfinishedEpisodes:
    """Ids of the unfinished episode of each env."""

    def __init__(self) -> None:
        self.ids = np.zeros(0, np.int64)
        """Id of each env's unfinished episode; -1 if its start is unknown."""

    def add(self, runs: Runs, ends: np.ndarray, broken_ids: np.ndarray) -> np.ndarray:
        """Add the next batch. Return a mask of runs whose episode has a known start and did not fail.

        ends: mask of the runs that end their episode.
        """
        if (more := int(runs.env.max(initial=-1)) + 1 - len(self.ids)) > 0:
            self.ids = np.append(self.ids, np.full(more, -1))
        if len(broken_ids):
            self.ids[np.isin(self.ids, broken_ids)] = -1
        usable = (runs.before == 0) | (self.ids[runs.env] == runs.traj_id)
        if len(broken_ids):
            usable &= ~np.isin(runs.traj_id, broken_ids)
        self.ids[runs.env] = np.where(usable & ~ends, runs.traj_id, -1)  # if an env has several runs, the last counts
        return usable


class Ended(NamedTuple):
    """Episodes that ended in a batch, ordered by env."""

    env_ids: np.ndarray
    returns: np.ndarray
    lens: np.ndarray


class RunningReturns:
    """Returns of the envs' unfinished episodes."""

    def __init__(self) -> None:
        self._unfinished, self._returns = UnfinishedEpisodes(), np.zeros(0)

    def add(self, batch: Rollout | FlatRollout) -> Ended:
        """Add the next batch. Return the episodes that end in it, with a known start and without a failure."""
        runs, mask = runs_of(batch), nest.as_array(batch.mask)
        reward, ends = rewards_of(batch)[mask], ends_of(batch, mask, runs)
        usable = self._unfinished.add(runs, ends, batch.broken_ids)
        if self._returns.shape != (shape := (len(self._unfinished.ids), *reward.shape[1:])):
            known, self._returns = self._returns, np.zeros(shape)
            if known.ndim == len(shape):  # else only failed steps, whose rewards are scalar 0
                self._returns[: len(known)] = known
        if not len(reward):
            return Ended(runs.env, np.zeros((0, *shape[1:])), np.zeros(0, np.int64))
        follows = usable & (runs.before > 0)
        with np.errstate(over="ignore", invalid="ignore"):
            returns = np.add.reduceat(reward.astype(np.float64, copy=False), runs.start)
            returns[follows] += self._returns[runs.env[follows]]
        self._returns[runs.env[~ends]] = returns[~ends]
        whole = ends & usable
        return Ended(runs.env[whole], returns[whole], (runs.before + runs.stop - runs.start)[whole])
