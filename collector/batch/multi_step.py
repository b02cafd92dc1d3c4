"""Transitions of several steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collector.batch.forms import convert_like, copy_of, pick, trajectory_bounds
from collector.batch.rollout import FlatRollout, Steps
from collector.batch.step_extras import NO_FINAL_OBS
from vecenv.arguments import check_number
from vecenv.nest import as_array


class MultiStep:
    """Conversion of one-step transitions into transitions of up to `n` steps, for `postproc` of a collector.

        collector = SyncDataCollector(venv, policy, frames_per_batch=2048, postproc=MultiStep(3, gamma=0.99))
        for batch in collector:
            target = batch.reward + batch.extras["discount"] * ~batch.terminated * value(batch.next.obs)

    Takes a `Rollout` or `FlatRollout`, and returns a `FlatRollout` with the same steps. The reward becomes the
    discounted sum of n rewards, or fewer at the end of an episode or batch. `next.obs`, `terminated` and
    `truncated` come from the last step whose reward was summed. New entries of `extras`:

    - `discount`: float64, `gamma` to the power of `steps`, the factor for the value of `next.obs`.
    - `steps` and (for torchrl's value estimators) `steps_to_next_obs`: int64, the number of summed rewards.
    - `original_reward`: the reward before the sum.

    torchrl's MultiStep keeps the `terminated` and `truncated` of the first summed step. So its targets bootstrap
    even if a later summed step terminates. torchrl's MultiStep takes gamma first, then n.

    Raises ValueError if n is not an integer of at least 1, or gamma is not in (0, 1]. A call raises ValueError if the
    batch already has one of the new extras.

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
        self.gamma = check_number("gamma", gamma)
        if not 0 < self.gamma <= 1:
            raise ValueError(f"MultiStep(n, gamma) needs a gamma above 0 and at most 1; got gamma={gamma!r}")
        self.n = int(n)

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
            raise ValueError(
                f"batch.extras already has {taken}, and MultiStep adds entries with these names: rename the existing "
                "ones"
            )
        lost = {name: pick(rows, last) for name, rows in flat.extras.items() if name == NO_FINAL_OBS}
        return replace(
            flat,
            reward=reward,
            terminated=pick(flat.terminated, last),
            truncated=pick(flat.truncated, last),
            tail_rows=convert_like(tails, flat.reward),
            tail_obs=pick(flat.next.obs, last[tails]),
            extras={**flat.extras, **lost, **extras},
        )

    def _last_rows(self, flat: FlatRollout) -> np.ndarray:
        starts, stops = trajectory_bounds(flat.env_ids, flat.traj_ids, flat.step_count)
        last = np.repeat(stops, stops - starts) - 1
        return np.minimum(np.arange(flat.frames) + self.n - 1, last)

    def __repr__(self) -> str:
        return f"MultiStep(n={self.n}, gamma={self.gamma})"
