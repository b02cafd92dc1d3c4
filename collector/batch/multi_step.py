"""`MultiStep`: turn one-step transitions into n-step transitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collector.batch.conversions import copy_of, like, pick
from collector.batch.rollout import FlatRollout, Steps
from vecenv.nest import as_array


class MultiStep:
    """Makes each step of a batch one of up to `n` steps, for the `postproc` of a collector (as torchrl's MultiStep).

        collector = SyncDataCollector(venv, policy, frames_per_batch=2048, postproc=MultiStep(3, gamma=0.99))
        for batch in collector:
            target = batch.reward + batch.extras["discount"] * ~batch.terminated * value(batch.next.obs)

    Called with a `Rollout` or `FlatRollout`, it returns a `FlatRollout` with the same steps, in which the reward is
    that of the step and, discounted, of the n - 1 after it; `next.obs`, `terminated` and `truncated` are those after
    the last of these. Episodes are not left: near the end of one, and at the end of the batch, there are fewer steps.
    `extras` has these entries more: `discount` (float64: `gamma` to the number of steps, for the value of `next.obs`),
    `steps` (int64: how many; also as `steps_to_next_obs`, where torchrl's value estimators look), and
    `original_reward`.

    In torchrl's the flags stay those of the first step, and its targets go on from the last observation of an episode
    that was terminated; here they end there.

    Arguments: n, at least 1; gamma, above 0 and at most 1. (torchrl's has them the other way round: a ValueError.)

    >>> import gymnasium as gym
    >>> from collector import SyncDataCollector
    >>> fns = [lambda: gym.make("CartPole-v1")]
    >>> with SyncDataCollector(fns, frames_per_batch=5, postproc=MultiStep(3, gamma=0.5)) as collector:
    ...     collector.next().reward
    array([1.75, 1.75, 1.75, 1.5 , 1.  ])
    """

    def __init__(self, n: int, gamma: float) -> None:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"MultiStep(n, gamma) needs a number of steps n, an integer of at least 1; got n={n!r}")
        if not 0 < gamma <= 1:
            raise ValueError(f"MultiStep(n, gamma) needs a gamma above 0 and at most 1; got gamma={gamma!r}")
        self.n, self.gamma = int(n), float(gamma)

    def __call__(self, batch: Steps) -> FlatRollout:
        flat = batch.flatten()
        last = self._last_rows(flat)
        rows = np.arange(len(last))
        reward = copy_of(flat.reward)
        for k in range(1, self.n):
            more = (rows + k <= last).nonzero()[0]
            reward[like(more, reward)] += self.gamma**k * pick(flat.reward, more + k)
        steps = last - rows + 1
        extras = {
            "discount": like(self.gamma**steps, flat.reward),
            "steps": like(steps, flat.reward),
            "steps_to_next_obs": like(steps, flat.reward),
            "original_reward": flat.reward,
        }
        tails = np.union1d(as_array(flat.tail_rows), (steps > 1).nonzero()[0])
        if taken := sorted(extras.keys() & flat.extras.keys()):
            raise ValueError(f"MultiStep adds {taken} to the batch, which has entries of these names already")
        return replace(
            flat,
            reward=reward,
            terminated=pick(flat.terminated, last),
            truncated=pick(flat.truncated, last),
            tail_rows=like(tails, flat.reward),
            tail_obs=pick(flat.next.obs, last[tails]),
            extras={**flat.extras, **extras},
        )

    def _last_rows(self, flat: FlatRollout) -> np.ndarray:
        """The row of the last step that each step is joined with: rows of one trajectory follow each other."""
        trajectories = as_array(flat.traj_ids)
        ends = np.append(np.flatnonzero(np.diff(trajectories)), len(trajectories) - 1)
        rows = np.arange(len(trajectories))
        last = ends[np.searchsorted(ends, rows)] if len(rows) else rows
        return np.minimum(rows + self.n - 1, last)

    def __repr__(self) -> str:
        return f"MultiStep(n={self.n}, gamma={self.gamma})"
