"""`MultiStep`: turn one-step transitions into n-step transitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collector.batch.conversions import convert_like, copy_of, pick
from collector.batch.rollout import FlatRollout, Steps
from vecenv.nest import as_array


class MultiStep:
    """Conversion of one-step transitions into transitions of up to `n` steps, for `postproc` of a collector.

        collector = SyncDataCollector(venv, policy, frames_per_batch=2048, postproc=MultiStep(3, gamma=0.99))
        for batch in collector:
            target = batch.reward + batch.extras["discount"] * ~batch.terminated * value(batch.next.obs)

    Takes a `Rollout` or `FlatRollout`, and returns a `FlatRollout` with the same steps. The reward becomes the
    discounted sum of n rewards. `next.obs`, `terminated` and `truncated` belong to the last of these n steps. Fewer
    steps are used at the end of an episode or batch. New entries of `extras`:

    - `discount`: float64, `gamma` to the power of `steps`, for the value of `next.obs`.
    - `steps`: int64, the number of steps; also as `steps_to_next_obs`, for torchrl's value estimators.
    - `original_reward`.

    In torchrl's MultiStep, the flags belong to the first step, so that targets continue after a terminated episode.

    Raises ValueError for n below 1 or not an integer, for gamma outside (0, 1], and for a batch with one of these
    names. torchrl's MultiStep takes gamma before n.

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
            reward[convert_like(more, reward)] += self.gamma**k * pick(flat.reward, more + k)
        steps = last - rows + 1
        extras = {
            "discount": convert_like(self.gamma**steps, flat.reward),
            "steps": convert_like(steps, flat.reward),
            "steps_to_next_obs": convert_like(steps, flat.reward),
            "original_reward": flat.reward,
        }
        tails = np.union1d(as_array(flat.tail_rows), (steps > 1).nonzero()[0])
        if taken := sorted(extras.keys() & flat.extras.keys()):
            raise ValueError(f"MultiStep adds {taken} to batch.extras, which has these names already: rename them")
        return replace(
            flat,
            reward=reward,
            terminated=pick(flat.terminated, last),
            truncated=pick(flat.truncated, last),
            tail_rows=convert_like(tails, flat.reward),
            tail_obs=pick(flat.next.obs, last[tails]),
            extras={**flat.extras, **extras},
        )

    def _last_rows(self, flat: FlatRollout) -> np.ndarray:
        trajectories = as_array(flat.traj_ids)
        ends = np.append(np.flatnonzero(np.diff(trajectories)), len(trajectories) - 1)
        rows = np.arange(len(trajectories))
        last = ends[np.searchsorted(ends, rows)] if len(rows) else rows
        return np.minimum(rows + self.n - 1, last)

    def __repr__(self) -> str:
        return f"MultiStep(n={self.n}, gamma={self.gamma})"
