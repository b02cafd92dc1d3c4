"""`StepLog`: rows of steps. A step is one row, written in two halves.

Each env has an open row, which holds the env's latest observation:

- `act` writes the first half of the open row: the policy's outputs, the episode's id, the number of earlier steps.
- `receive` writes the second half: reward and flags. The next observation opens the env's next row.
- `observe` replaces the observation of the open row, for example after a reset.
- `end` keeps the last observations of episodes, because the next episodes' first observations replace them.

Step k of env n is in row `k * N + n`. So a batch is a view of the memory::

    log             row 0: env 0, ..., row N-1: env N-1 | row N: env 0, ... | ... | rows T * N ...: observations only
    batch (N, T)    obs[env, t], action[env, t], reward[env, t], ...

A failed step (`on_error="restart"`) has `mask` False. The previous step becomes the end of the episode::

    time         0    1    2    3     4    5
    env 1        s0   s1   s2#  fails s0   s1     # = truncated; next.obs[2] is obs[3]
    mask         T    T    T    F     T    T
    broken       T    T    T    T     F    F
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from collector.batch.forms import copy_of, in_float64, rollout_columns, zeros
from collector.batch.rollout import Rollout
from collector.batch.step_extras import EPISODE_SEED, blank
from vecenv import nest

if TYPE_CHECKING:
    from collector.episodes.env_episodes import Episodes

Where = slice | np.ndarray


class StepLog:
    """Log of the steps of N envs. A column is an array, a tensor (on the policy's device), or a tree of these.

    episodes: ids and step counts of the envs' episodes. has_seeds: also log the seeds of the episodes.
    """

    def __init__(self, episodes: Episodes, has_seeds: bool = False) -> None:
        self.episodes, self.env_num, self._has_seeds = episodes, len(episodes.ids), has_seeds
        self.columns: dict[str, Any] = {}
        self.finals: list[tuple[np.ndarray, Any]] = []
        """Rows of the steps that ended episodes, and the observations after these steps."""
        self.failed: list[np.ndarray] = []
        """Rows of failed steps."""
        self.steps, self.version = 0, -1
        """Maximum number of steps of each env, and version of the weights in this batch."""
        self.all_ids = np.arange(self.env_num)
        """Ids to pass for a round of all envs. Its rows are then a slice, which is faster than an index."""
        self._open: slice | None = slice(0, self.env_num)
        """Open rows, or `None` if the envs have taken different numbers of steps."""
        self._counts = np.zeros(self.env_num, np.int64)
        """int64 `(N,)`: steps of each env, if `_open` is `None`."""
        self._received: Where = slice(0, 0)
        """Rows that the last `receive` completed."""
        self.ended = False
        """True if the last `receive` ended episodes."""
        self._reuse = False
        self._kept: dict[str, Any] = {}
        """Memory of the last batch with `reuse`."""

    def begin(self, frames: int, version: int = -1, reuse: bool = False, extras: Collection[str] = ()) -> None:
        """Begin a batch of `frames` steps of all envs together. The envs' latest observations become its first rows.

        version: number of weight updates, or -1 for random actions. reuse: write into the memory of the last batch with
        `reuse`, which becomes invalid. extras: names of extras that earlier steps may keep.
        """
        latest = self.obs(None) if "obs" in self.columns else None
        self.columns, self.finals, self.failed = {}, [], []
        self.steps, self.version, self._reuse = frames // self.env_num, version, reuse
        self._open = slice(0, self.env_num)
        if latest is not None:
            self._write("obs", self._open, latest)

    def convert_obs(self, convert: Callable[[Any], Any]) -> None:
        """Convert the latest observations between two batches, for example to tensors."""
        if "obs" in self.columns:
            self.columns["obs"] = convert(self.columns["obs"])

    @property
    def counts(self) -> np.ndarray:
        """int64 `(N,)`: number of steps of each env."""
        return self._counts if self._open is None else np.full(self.env_num, self._open.start // self.env_num)

    def in_order(self, ids: np.ndarray) -> np.ndarray:
        """Return ascending ids, as `all_ids` if they are all."""
        return ids if len(ids) < self.env_num else self.all_ids

    def obs(self, ids: np.ndarray | None, copy: bool = False) -> Any:
        """Return the latest observations of these envs (`None`: all). Without `copy`, they may be views of the log."""
        at: Where = (self._open if ids is None or ids is self.all_ids else None) or self._rows(ids)
        column = self.columns["obs"]
        if column.__class__ is np.ndarray and at.__class__ is slice:
            return column[at].copy() if copy else column[at]
        rows = nest.take(column, at)
        return nest.map(copy_of, rows) if copy and isinstance(at, slice) else rows

    def observe(self, ids: np.ndarray, obs: Any) -> None:
        if "obs" not in self.columns and len(ids) < self.env_num:  # a policy may see rows of envs without an episode
            self._write("obs", self._rows(None), nest.take(obs, np.zeros(self.env_num, np.int64)))
        self._write("obs", self._rows(ids), obs)

    def act(self, ids: np.ndarray, outputs: dict[str, Any]) -> None:
        """Write the first half of a step. `outputs` may be views of observations that the step replaces."""
        at = (self._open if ids is self.all_ids else None) or self._rows(ids)
        columns, episodes = self.columns, self.episodes
        for name, rows in outputs.items():
            self._write(name, at, rows)
        if "step_count" not in columns:  # made last, so that after a Ctrl-C the next call repeats this loop
            for name in (*((EPISODE_SEED,) if self._has_seeds else ()), "traj_ids", "step_count"):
                self._new_column(name, episodes.ids)
        is_whole = at.__class__ is slice
        columns["traj_ids"][at] = episodes.ids if is_whole else episodes.ids[ids]
        columns["step_count"][at] = episodes.taken if is_whole else episodes.taken[ids]
        if self._has_seeds:
            columns[EPISODE_SEED][at] = episodes.seeds if is_whole else episodes.seeds[ids]

    def receive(
        self,
        ids: np.ndarray,
        obs: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        resets: np.ndarray | None = None,
    ) -> None:
        """Write the second half of a step, and the next observations. `resets`: mask of envs that did not step."""
        at: Where = (self._open if ids is self.all_ids else None) or self._rows(ids)
        columns = self.columns
        if "truncated" not in columns:
            rewards = reward if reward.dtype == np.float64 else in_float64(reward[:0])
            for name, rows in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
                self._new_column(name, rows)
        if reward.ndim > columns["reward"].ndim:  # the first vector reward
            self._new_column("reward", in_float64(reward[:0]))
        columns["reward"][at] = reward
        columns["terminated"][at] = terminated
        columns["truncated"][at] = truncated
        self._received, self.ended = at, False
        if resets is None and isinstance(at, slice):
            self._open = slice(at.stop, at.stop + self.env_num)
            self._write("obs", self._open, obs)
        else:
            self._write("obs", self._advance(ids, resets), obs)

    def received(self, name: str) -> Any:
        """Return a column's rows of the last `receive`."""
        return nest.take(self.columns[name], self._received)

    def truncate(self, truncated: np.ndarray) -> None:
        """Replace the flags of the last `receive`."""
        self.columns["truncated"][self._received] = truncated

    def add_extras(self, extras: dict[str, np.ndarray], stepped: np.ndarray | None) -> None:
        """Write columns of the last `receive`, or of its rows in the mask `stepped`. Other rows have zeros, or ""."""
        at = self._received
        if stepped is not None:
            at = (self.all_ids + at.start if isinstance(at, slice) else at)[stepped]
        for name, rows in extras.items():
            column = self.columns.get(name)
            if column is None:
                self.columns[name] = blank((self._capacity, *rows.shape[1:]), rows.dtype)
            elif column.dtype != rows.dtype:
                self.columns[name] = column.astype(np.promote_types(column.dtype, rows.dtype))
            self.columns[name][at] = rows

    def end(self, ended: np.ndarray, last_obs: Any, failed: np.ndarray | None) -> None:
        """End the episodes in these rows of the last `receive`. `failed`: mask of episodes whose last step failed."""
        at, self.ended = self._received, True
        rows = at.start + ended if isinstance(at, slice) else at[ended]
        if failed is not None:
            self.failed.append(rows[failed])
            rows, last_obs = rows[~failed], nest.take(last_obs, ~failed)
        self.finals.append((rows, last_obs))

    def batch(self, all_steps: bool = True) -> Any:
        """Return the batch as views of the log's memory. The log keeps only the latest observations."""
        batch = Rollout(**rollout_columns(self))
        if self._reuse:
            self._kept = self.columns
        self.clear()
        return batch

    def clear(self) -> None:
        """Discard all steps. Keep only the latest observations."""
        latest = {"obs": self.obs(None, copy=True)} if "obs" in self.columns else {}
        first = slice(0, self.env_num)
        # One statement, so that an interrupt leaves all of the old state.
        self.columns, self.finals, self.failed, self.steps, self._open = latest, [], [], 0, first

    @property
    def is_full(self) -> bool:
        taken = self._counts.max() if self._open is None else self._open.start // self.env_num
        return int(taken) >= self.steps

    @property
    def is_empty(self) -> bool:
        return not self.counts.any()

    @property
    def _capacity(self) -> int:
        return (self.steps + 1) * self.env_num

    def _rows(self, ids: np.ndarray | None) -> Where:
        """Return the open rows of these envs (`None`: all): a slice if all envs have taken as many steps."""
        if self._open is None:
            ids = self.all_ids if ids is None else ids
            return self._counts[ids] * self.env_num + ids
        return self._open if ids is None or ids is self.all_ids else self._open.start + ids

    def _advance(self, ids: np.ndarray, resets: np.ndarray | None) -> Where:
        """Open the next row of these envs, except of `resets`. Return the open rows."""
        self._counts, self._open = self.counts, None
        self._counts[ids] += 1 if resets is None else ~resets
        return self._rows(ids)

    def _write(self, name: str, at: Where, rows: Any) -> None:
        column = self.columns[name] if name in self.columns else self._new_column(name, rows)
        if type(rows) is np.ndarray:
            column[at] = rows
        else:
            nest.put(column, at, rows)

    def _new_column(self, name: str, rows: Any) -> Any:
        capacity, column = self._capacity, self._kept.get(name) if self._reuse else None
        if column is not None:
            kept, leaf = next(nest.leaves(column)), next(nest.leaves(rows))
            fits = type(kept) is type(leaf) and kept.shape == (capacity, *leaf.shape[1:])
            column = column if fits else None
        if column is None and rows.__class__ is np.ndarray:
            column = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
        elif column is None:
            column = nest.map(lambda leaf: zeros(leaf, capacity), rows)
        self.columns[name] = column
        return column
