"""`RolloutBuffer`: memory into which a collector writes the steps of a batch.

Memory is ordered by time, because each step writes a row per env. The finished `Rollout` has views `(N, T, ...)`::

    buffer (flat)   t=0: env 0, env 1, ..., env N-1 | t=1: env 0, ... | ... | t=T: observations only
    rollout         obs[env, t], action[env, t], reward[env, t], ...

A step is in row `time * N + env`. Methods take rows as an index array, or as a slice if all envs step.

A failed step (`on_error="restart"`) has `mask` False. The previous step becomes the end of the episode::

    time         0    1    2    3     4    5
    env 1        s0   s1   s2#  fails s0   s1     # = truncated; next.obs[2] is obs[3]
    mask         T    T    T    F     T    T
    broken       T    T    T    T     F    F
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.conversions import join, pick
from collector.batch.rollout import Rollout
from collector.batch.step_extras import EPISODE_SEED, blank, check_policy_names
from vecenv import nest

Where = slice | np.ndarray
Numbers = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray | None]]


class RolloutBuffer:
    """Memory of one batch. The first write of a column allocates `(T+1) * N` rows."""

    def __init__(self, env_num: int, steps: int) -> None:
        self._env_num = env_num
        self.steps = steps
        self._columns: dict[str, Any] = {}
        self._spare: dict[str, Any] = {}
        self._finals: list[tuple[np.ndarray, Any]] = []
        self._failed: list[np.ndarray] = []

    def rewind(self) -> None:
        """Reuse the memory for another batch. The previous batch becomes invalid."""
        self._spare |= self._columns
        self._columns = {}
        self._finals, self._failed = [], []

    def write(self, name: str, where: Where, rows: Any) -> None:
        column = self._columns[name] if name in self._columns else self._new_column(name, rows)
        if type(rows) is np.ndarray:
            column[where] = rows
        else:
            nest.put(column, where, rows)

    def write_outputs(self, where: Where, outputs: dict[str, Any]) -> None:
        """Write the policy's outputs before the step, because they may be views of `obs`.

        A step with `copy=False` overwrites `obs`.
        """
        if "action" not in self._columns:
            check_policy_names(outputs)
        for name, rows in outputs.items():
            self.write(name, where, rows)

    def write_step(
        self, where: Where, after: Where, obs: Any, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> None:
        columns = self._columns
        if "truncated" not in columns:  # made last, so that after a Ctrl-C the next call repeats this loop
            for name, rows in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
                self._new_column(name, rows)
        if reward.ndim > columns["reward"].ndim:  # the first vector reward
            columns["reward"] = self._allocate(reward)
            columns["reward"][...] = 0
        columns["reward"][where] = reward
        columns["terminated"][where] = terminated
        columns["truncated"][where] = truncated
        self.write("obs", after, obs)

    def write_extras(self, where: Where, extras: dict[str, np.ndarray]) -> None:
        """Write columns that some steps lack, with zeros or "" for these steps. Promote the dtype if it changes."""
        for name, rows in extras.items():
            column = self._columns.get(name)
            if column is None:
                column = blank(((self.steps + 1) * self._env_num, *rows.shape[1:]), rows.dtype)
            elif column.dtype != rows.dtype:
                column = column.astype(np.promote_types(column.dtype, rows.dtype))
            column[where] = rows
            self._columns[name] = column

    def has(self, name: str) -> bool:
        return name in self._columns

    def read(self, name: str, where: Where) -> Any:
        """Return the rows at `where`, copied if `where` is an index array."""
        return nest.take(self._columns[name], where)

    def end_episodes(self, rows: np.ndarray, obs: Any, failed: np.ndarray | None) -> None:
        """Record the last observations of episodes, because resets overwrite them. `failed`: mask of failed steps."""
        if failed is not None:
            self._failed.append(rows[failed])
            rows, obs = rows[~failed], nest.take(obs, ~failed)
        self._finals.append((rows, obs))

    def finish(self, count: np.ndarray, numbers: Numbers, policy_version: int) -> Rollout:
        """Return the batch, as views of this buffer.

        `count` `(N,)`: steps per env. `numbers(done)` returns arrays `(N, T)`: episode ids, step counts and seeds (or
        None).
        """
        n, steps = self._env_num, int(count.max())
        recorded = np.arange(steps) < count[:, None]
        columns = {name: nest.map(lambda rows: self._view(rows, steps), tree) for name, tree in self._columns.items()}
        all_obs = columns.pop("obs")
        columns = {name: nest.map(lambda rows: rows[:, :steps], tree) for name, tree in columns.items()}
        full = bool(count.min() == steps)
        if not full:
            written = np.arange(steps + 1) <= count[:, None]
            for rows in nest.leaves(all_obs):
                rows[~written] = 0
            for rows in nest.leaves(columns):
                rows[~recorded] = 0
        known = {name: columns.pop(name) for name in ("action", "reward", "terminated", "truncated")}
        done = known["terminated"] | known["truncated"]
        traj_ids, step_count, seeds = numbers(done)
        if seeds is not None:
            columns[EPISODE_SEED] = seeds
        failed = np.zeros(recorded.shape, np.bool_)
        for rows in self._failed:
            failed[rows % n, rows // n] = True
        broken_ids = np.unique(traj_ids[failed])
        final_env, final_time, final_obs = self._join_finals(all_obs)
        batch = Rollout(
            all_obs=all_obs,
            **known,
            traj_ids=traj_ids,
            step_count=step_count,
            policy_version=np.full((n, steps), policy_version),
            env_ids=np.arange(n),
            final_obs=final_obs,
            final_env=final_env,
            final_time=final_time,
            mask=recorded & ~failed,
            broken=np.isin(traj_ids, broken_ids) & recorded,
            broken_ids=broken_ids,
            extras=columns,
        )
        return _end_before_failures(batch) if self._failed else batch

    def _new_column(self, name: str, rows: Any) -> Any:
        column = self._columns[name] = self._spare.pop(name) if name in self._spare else nest.map(self._allocate, rows)
        return column

    def _allocate(self, rows: np.ndarray) -> np.ndarray:
        return np.empty(((self.steps + 1) * self._env_num, *rows.shape[1:]), rows.dtype)

    def _view(self, rows: np.ndarray, steps: int) -> np.ndarray:
        return rows.reshape(self.steps + 1, self._env_num, *rows.shape[1:])[: steps + 1].swapaxes(0, 1)

    def _join_finals(self, all_obs: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        ended = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in self._finals)])
        obs = nest.map(lambda rows: np.empty((len(ended), *rows.shape[2:]), rows.dtype), all_obs)
        start = 0
        for rows, last in self._finals:
            nest.put(obs, slice(start, start + len(rows)), last)
            start += len(rows)
        order = np.argsort(ended)
        time, env = np.divmod(ended[order], self._env_num)
        return env, time, nest.take(obs, order)


def _end_before_failures(batch: Rollout) -> Rollout:
    """Truncate the last step before each failure, and add the observation after this step to `final_obs`."""
    failed = batch.broken & ~batch.mask
    ends = np.zeros_like(failed)
    ends[:, :-1] = failed[:, 1:] & batch.mask[:, :-1] & (batch.traj_ids[:, 1:] == batch.traj_ids[:, :-1])
    env, time = ends.nonzero()
    if not len(env):
        return batch
    batch.truncated[env, time] = True
    final_obs = join([batch.final_obs, pick(batch.all_obs, env, time + 1)])
    env, time = np.concatenate([batch.final_env, env]), np.concatenate([batch.final_time, time])
    order = np.lexsort((env, time))
    return replace(batch, final_env=env[order], final_time=time[order], final_obs=nest.take(final_obs, order))
