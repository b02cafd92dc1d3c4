"""A batch of collected steps, and the tape on which it is recorded.

Memory is laid out time first, because that is how it is written: one row of all environments after another. What the
user sees is environment first, `(N, T, ...)`, as views of that memory::

    tape (flat)   t=0: env 0, env 1, ..., env N-1 | t=1: env 0, ... | ... | t=T: observations only
    rollout       obs[env, t], action[env, t], reward[env, t], ...

Environments are not always at the same time: one that is being reset while the others step falls a row behind. So a
row is addressed by `time * N + env`, with one index array (or one slice, while all are at the same time).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest

Where = slice | np.ndarray


class Next(NamedTuple):
    """What came after each step of a `Rollout`: arrays `(N, T, ...)`."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any

    @property
    def done(self) -> Any:
        """Bool `(N, T)`: the episode was over after the step."""
        return self.terminated | self.truncated


@dataclass(frozen=True, eq=False, repr=False)
class Rollout:
    """Steps of N environments, T each: arrays of shape `(N, T, ...)`; the last of the two dimensions is time.

    Guarantees: the arrays belong to the caller and never change later. `obs[n, t]` is what the policy saw before
    `action[n, t]`, never the last observation of an episode; that one is in `next.obs[n, t]`, always the true one and
    never what a reset returned. Observations are stored once, in `all_obs`, and not a second time as next ones.

    Arrays are numpy, or torch tensors on `storing_device` when the collector has one. Observations are trees (a dict
    or tuple of arrays) where the space is Dict or Tuple.

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
    """int64 `(N, T)`: the episode a step belongs to. The k-th episode of environment n has the id `k * N + n`."""
    final_obs: Any
    """`(K, ...)`: the last observations of the K episodes that ended here, ordered by time, then environment."""
    final_env: Any
    """int64 `(K,)`: the environment in which each of them ended."""
    final_time: Any
    """int64 `(K,)`: the step with which each of them ended."""
    mask: Any
    """Bool `(N, T)`: False where an interrupted collection left no step. What a step records is zero there; only the
    first such row of `obs` is not: it is what came after the last step, as row T of `all_obs` is in a full batch."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What the policy returned beside the action, by name: arrays `(N, T, ...)`."""

    def __repr__(self) -> str:
        n, steps = self.shape
        return f"Rollout({n} environments, {steps} steps, {self.frames} frames, {len(self.final_env)} episode ends)"

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, T)`."""
        return (self.reward.shape[0], self.reward.shape[1])

    @property
    def frames(self) -> int:
        """Steps recorded, all environments together."""
        return int(self.mask.sum())

    @property
    def obs(self) -> Any:
        """`(N, T, ...)`: the observation before each step (a view of `all_obs`)."""
        return nest.map(lambda rows: rows[:, :-1], self.all_obs)

    @property
    def done(self) -> Any:
        """Bool `(N, T)`: the step ended its episode."""
        return self.terminated | self.truncated

    @property
    def next(self) -> Next:
        """What came after each step. The observations are put together on each access, as a copy."""
        following = nest.map(lambda rows: _copy(rows[:, 1:]), self.all_obs)
        nest.put(following, (self.final_env, self.final_time), self.final_obs)
        return Next(following, self.reward, self.terminated, self.truncated)

    def to(self, device: Any) -> Rollout:
        """The same rollout as torch tensors on `device` (which share this memory where the device is the CPU)."""
        from collector.device import to_device

        return replace(self, **{each.name: to_device(getattr(self, each.name), device) for each in fields(self)})


def _copy(rows: Any) -> Any:
    """A copy of an array or a tensor, with the same layout in memory."""
    return rows.copy(order="K") if isinstance(rows, np.ndarray) else rows.clone()


class Tape:
    """Records one batch, row by row; the memory of a column is allocated when its first row is written.

    A column is one array (or a tree of arrays) of `(T+1) * N` rows, so that `time * N + env` is where a row goes.
    """

    def __init__(self, env_num: int, steps: int) -> None:
        self._env_num = env_num
        self._size = (steps + 1) * env_num
        self._columns: dict[str, Any] = {}
        self._finals: list[tuple[np.ndarray, Any]] = []

    def write(self, name: str, where: Where, rows: Any) -> None:
        """Put `rows`, a tree of `(k, ...)` arrays, where the k indices of `where` say."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = nest.map(self._allocate, rows)
        if type(rows) is np.ndarray:
            column[where] = rows
        else:
            nest.put(column, where, rows)

    def read(self, name: str, where: Where) -> Any:
        """The rows at `where`: a copy where `where` is an index array."""
        return nest.take(self._columns[name], where)

    def end_episodes(self, rows: np.ndarray, obs: Any) -> None:
        """Note that the steps in these rows ended their episodes, with these observations.

        Those are kept: what a reset gives will be written over them.
        """
        self._finals.append((rows, obs))

    def finish(self, count: np.ndarray, first_episode: np.ndarray) -> Rollout:
        """The batch, as views of this tape.

        `count` `(N,)` are the steps recorded of each environment, `first_episode` `(N,)` the number of the episode in
        which each began.
        """
        steps = int(count.max())
        mask = np.arange(steps) < count[:, None]
        columns = {name: nest.map(lambda rows: self._view(rows, steps), tree) for name, tree in self._columns.items()}
        all_obs = columns.pop("obs")
        columns = {name: nest.map(lambda rows: rows[:, :steps], tree) for name, tree in columns.items()}
        if not mask.all():
            written = np.arange(steps + 1) <= count[:, None]
            for rows in nest.leaves(all_obs):
                rows[~written] = 0
            for rows in nest.leaves(columns):
                rows[~mask] = 0
        known = {name: columns.pop(name) for name in ("action", "reward", "terminated", "truncated")}
        done = known["terminated"] | known["truncated"]
        traj_ids = (first_episode[:, None] + done.cumsum(1) - done) * self._env_num + np.arange(self._env_num)[:, None]
        final_env, final_time, final_obs = self._join_finals(all_obs)
        return Rollout(
            all_obs=all_obs,
            **known,
            traj_ids=traj_ids,
            final_obs=final_obs,
            final_env=final_env,
            final_time=final_time,
            mask=mask,
            extras=columns,
        )

    def _allocate(self, rows: np.ndarray) -> np.ndarray:
        return np.empty((self._size, *rows.shape[1:]), rows.dtype)

    def _view(self, rows: np.ndarray, steps: int) -> np.ndarray:
        """Rows as `(N, steps + 1, ...)`."""
        return rows.reshape(-1, self._env_num, *rows.shape[1:])[: steps + 1].swapaxes(0, 1)

    def _join_finals(self, all_obs: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Environments, times and last observations of the episodes that ended, ordered by time and environment."""
        ended = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in self._finals)])
        obs = nest.map(lambda rows: np.empty((len(ended), *rows.shape[2:]), rows.dtype), all_obs)
        start = 0
        for rows, last in self._finals:
            nest.put(obs, slice(start, start + len(rows)), last)
            start += len(rows)
        order = np.argsort(ended)
        time, env = np.divmod(ended[order], self._env_num)
        return env, time, nest.take(obs, order)
