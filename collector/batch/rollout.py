"""A batch of collected steps, `(env, time, ...)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collector.batch.flat_rollout import FlatRollout, copy_of, like
from collector.batch.steps import Next, Steps
from vecenv import nest


@dataclass(frozen=True, eq=False, repr=False)
class Rollout(Steps):
    """Steps of N envs, T each: arrays of shape `(N, T, ...)`; the last of the two dimensions is time.

    Guarantees: the arrays belong to the caller and never change later. `obs[n, t]` is what the policy saw before
    `action[n, t]`, never the last observation of an episode; that one is in `next.obs[n, t]`, always the true one and
    never what a reset returned. Observations are stored once, in `all_obs`, and not a second time as next ones.

    Arrays are numpy, or torch tensors on `storing_device` when the collector has one. Observations are trees (a dict
    or tuple of arrays) where the space is Dict or Tuple. After `split_trajectories` a row is a trajectory instead of an
    env.

    Example::

        for batch in collector:
            target = batch.reward + 0.99 * ~batch.terminated * value(batch.next.obs)
            loss = (value(batch.obs) - target)[batch.mask] ** 2
    """

    all_obs: Any
    """`(N, T+1, ...)`: row t is the observation before step t; the last one what there was after the last step."""
    action: Any
    reward: Any
    """float64 `(N, T)`; `(N, T, m)` where rewards are vectors."""
    terminated: Any
    truncated: Any
    traj_ids: Any
    """int64 `(N, T)`: the episode a step belongs to. The k-th episode of env n has the id `k * N + n`."""
    step_count: Any
    """int64 `(N, T)`: how many steps of its episode came before."""
    policy_version: Any
    """int64 `(N, T)`: how often the policy's weights had been updated; -1 where a random action took its place."""
    env_ids: Any
    """int64 `(N,)`: the env of each row."""
    final_obs: Any
    """`(K, ...)`: the last observations of the K episodes that ended here, ordered by time, then env."""
    final_env: Any
    """int64 `(K,)`: the row in which each of them ended."""
    final_time: Any
    """int64 `(K,)`: the step with which each of them ended."""
    mask: Any
    """Bool `(N, T)`: False where there is no step, or one of an episode that broke off (see `broken`). What a step
    records is zero where an env had all its episodes; only the first such row of `obs` is not: it is what came
    after the last step, as row T of `all_obs` is in a full batch."""
    broken: Any
    """Bool `(N, T)`: True for the steps of an episode that broke off because its env failed (a vector
    env with `on_error="restart"`). What came before in earlier batches has the same `traj_ids`."""
    broken_ids: np.ndarray
    """The `traj_ids` of the episodes that broke off here; those of `split_trajectories` too, which leaves their steps
    out. A numpy array on every device."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What the policy returned beside the action, by name: arrays `(N, T, ...)`."""

    def __repr__(self) -> str:
        n, steps = self.shape
        return f"Rollout({n} envs, {steps} steps, {self.frames} frames, {len(self.final_env)} episode ends)"

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, T)`."""
        return (self.reward.shape[0], self.reward.shape[1])

    @property
    def names(self) -> tuple[str, str]:
        """What the two dimensions are."""
        return ("env", "time")

    @property
    def frames(self) -> int:
        """Steps in the batch, all envs together."""
        return int(self.mask.sum())

    @property
    def obs(self) -> Any:
        """`(N, T, ...)`: the observation before each step (a view of `all_obs`)."""
        return nest.map(lambda rows: rows[:, :-1], self.all_obs)

    @property
    def next(self) -> Next:
        """What came after each step. The observations are put together on each access, as a copy."""
        following = nest.map(lambda rows: copy_of(rows[:, 1:]), self.all_obs)
        nest.put(following, (self.final_env, self.final_time), self.final_obs)
        return self._followed_by(following)

    def flatten(self) -> FlatRollout:
        """The steps that `mask` marks, `(frames, ...)`: by row, then by time. A copy."""
        mask = nest.as_array(self.mask)
        episode_ends = nest.as_array(self.final_env), nest.as_array(self.final_time)
        ends = mask.copy()
        ends[:, :-1] &= ~mask[:, 1:]  # the last recorded step of each stretch of a row
        ends[episode_ends] = True
        row, time = np.nonzero(ends & mask)
        place = np.full(mask.shape, -1)
        place[row, time] = np.arange(len(row))
        tail_obs = nest.map(lambda rows: rows[like(row, rows), like(time + 1, rows)], self.all_obs)
        final = place[episode_ends]
        kept = final >= 0
        nest.put(tail_obs, final[kept], nest.map(lambda rows: rows[like(np.flatnonzero(kept), rows)], self.final_obs))
        at = np.nonzero(mask)

        def pick(rows: Any) -> Any:
            return rows[like(at[0], rows), like(at[1], rows)]

        return FlatRollout(
            obs=nest.map(pick, self.obs),
            **{name: pick(getattr(self, name)) for name in _COLUMNS},
            env_ids=self.env_ids[like(at[0], self.env_ids)],
            tail_rows=like((np.cumsum(mask) - 1)[row * mask.shape[1] + time], self.reward),
            tail_obs=tail_obs,
            broken_ids=self.broken_ids,
            extras=nest.map(pick, self.extras),
        )

    def to_tensordict(self) -> Any:
        """The batch as torchrl's collectors give it: a `TensorDict` of shape `(N, T)`; needs `vecenv[torch]` and
        tensordict.

        Rewards and flags have a last dimension of 1, and rewards are float32 (also where they are vectors); those of
        the batch stay float64. `next` holds what came after each step, and ("collector", "traj_ids") the episodes.

        Raises `TypeError` that names the entry where one is an array of objects or text, as is the `agent_id` of
        `PettingZooEnv`.
        """
        from collector.batch.tensordict_form import as_tensordict

        return as_tensordict(self, [*self.shape], [None, "time"])


_COLUMNS = ("action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version")
