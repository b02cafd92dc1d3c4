"""Batches of steps: `Rollout` `(env, time, ...)` and `FlatRollout` `(step, ...)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from collector.batch.forms import (
    continues,
    convert_like,
    copy_of,
    flat_columns,
    join,
    pick,
    tail_rows,
    trajectory_bounds,
    trajectory_columns,
)
from vecenv import nest

Self = TypeVar("Self", bound="Steps")


class Next:
    """Observations, rewards and flags after each step of a batch: a view, which copies only what is read."""

    def __init__(self, batch: Steps) -> None:
        self._batch = batch

    @property
    def obs(self) -> Any:
        """Observations, copied on each access."""
        return self._batch._next_obs()

    @property
    def reward(self) -> Any:
        return self._batch.reward

    @property
    def terminated(self) -> Any:
        return self._batch.terminated

    @property
    def truncated(self) -> Any:
        return self._batch.truncated

    @property
    def done(self) -> Any:
        """bool: see `Rollout.done`."""
        return self._batch.done

    @property
    def step_count(self) -> Any:
        return self._batch.step_count + (self._batch.traj_ids >= 0)


class Runs(NamedTuple):
    """Runs of a batch, ordered by env, then by time. A run is the part of an episode in one batch.

    Rows count the steps in `mask`.
    """

    env: np.ndarray
    """int64 `(R,)`: env of each run."""
    traj_id: np.ndarray
    before: np.ndarray
    """Number of the episode's steps in earlier batches."""
    start: np.ndarray
    """Row of the first step."""
    stop: np.ndarray
    """Row after the last step."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Steps(ABC):
    """Base class of `Rollout` and `FlatRollout`."""

    action: Any
    """Actions that the envs received: an array, or a dict or tuple of arrays."""
    reward: Any
    """float64. If a reward is a vector of m numbers, the last dimension is m."""
    terminated: Any
    truncated: Any
    traj_ids: Any
    """int64: id of the step's episode, or -1 without an episode. The id is the number from `episode_seeds`. Without
    `episode_seeds`, episode k (from 0) of env n has the id `k * N + n`.
    """
    step_count: Any
    """int64: number of earlier steps of the episode."""
    policy_version: Any
    """int64: number of earlier weight updates; -1 for a random action."""
    env_ids: Any
    """int64 `(N,)` or `(F,)`: env of each row."""
    broken_ids: np.ndarray
    """Numpy array: ids of episodes that ended in this batch because their env failed."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Additional columns by name, from the policy, a step hook (`on_step=`), infos or `episode_seeds`."""
    episode_returns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Numpy array, float64 `(E,)`, or `(E, m)` for vectors of m rewards: the return of each episode that ended in this
    batch, with the rewards of earlier batches. Ordered by env, then by time. Broken episodes, and episodes that began
    before the first batch, are left out.
    """

    @property
    @abstractmethod
    def done(self) -> Any:
        """bool: the episode's next step is not in the next row. The step ended the episode (`terminated` or
        `truncated`), or the batch or the loss of a worker cut the episode here.
        """

    @property
    def random(self) -> Any:
        """bool: the action was random, not the policy's."""
        return self.policy_version < 0

    @property
    def next(self) -> Next:
        """Results of each step."""
        return Next(self)

    @abstractmethod
    def _next_obs(self) -> Any:
        """Return a copy of the observations after each step."""

    @cached_property
    def _rewards(self) -> np.ndarray:
        return nest.as_array(self.reward)

    @cached_property
    def _runs(self) -> Runs:
        mask = nest.as_array(self.mask)  # type: ignore[attr-defined]  # of the subclasses
        ids, counts = nest.as_array(self.traj_ids)[mask], nest.as_array(self.step_count)[mask]
        envs = nest.as_array(self.env_ids)[mask.nonzero()[0]]
        start, stop = trajectory_bounds(envs, ids, counts)
        return Runs(envs[start], ids[start], counts[start], start, stop)

    def _broken_text(self) -> str:
        count = len(self.broken_ids)
        return f", {count} broken episode{'s' * (count > 1)}" if count else ""

    @abstractmethod
    def flatten(self) -> FlatRollout:
        """Return the steps as a `FlatRollout`, in one dimension."""

    def split_trajectories(self, pad_value: float = 0) -> Rollout:
        """Return a batch with a row per trajectory. Rows are ordered by env, then by time, and padded to one length.

        A trajectory is the part of an episode in this batch. Padding has `mask` False, `traj_ids` -1, flags False, and
        `pad_value` in other columns (zero if the dtype cannot hold `pad_value`).

        Raises ValueError for a batch from `MultiStep`, and TypeError if `pad_value` is not a number.
        """
        return Rollout(**trajectory_columns(self.flatten(), pad_value))

    def to(self: Self, device: Any) -> Self:
        """Return the batch as torch tensors on `device`. CPU tensors share memory with the arrays.

        Raises `TypeError` for an entry without a torch dtype (objects, text).
        """
        from collector.device.tensors import check_dtypes, to_device  # numpy batches need no torch

        names = [each.name for each in fields(self) if each.name not in ("broken_ids", "episode_returns")]
        columns = {name: getattr(self, name) for name in names}
        try:
            return replace(self, **to_device(columns, device))
        except TypeError:
            for name, tree in columns.items():
                check_dtypes(name.removeprefix("all_"), tree)  # raises an error with the path of the entry
            raise


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FlatRollout(Steps):
    """F steps `(F, ...)`, ordered by env, then by time. `AsyncDataCollector` returns such batches.

    Columns are as in `Rollout`, without padding and failed steps. The observation after a step is `obs` of the next
    row. For the rows in `tail_rows`, it is in `tail_obs`.
    """

    obs: Any
    tail_rows: Any
    """int64 `(K,)`: last row of each trajectory. `MultiStep` adds other rows."""
    tail_obs: Any
    """`(K, ...)`: observations after the steps in `tail_rows`."""

    def __repr__(self) -> str:
        envs, ended = len(np.unique(nest.as_array(self.env_ids))), int((self.terminated | self.truncated).sum())
        return f"FlatRollout({envs} envs, {self.frames} frames, {ended} episode ends{self._broken_text()})"

    @property
    def shape(self) -> tuple[int]:
        """`(F,)`."""
        return (self.reward.shape[0],)

    @property
    def names(self) -> tuple[str]:
        """Name of the dimension."""
        return ("time",)

    @property
    def frames(self) -> int:
        """Number of steps."""
        return int(self.reward.shape[0])

    @property
    def done(self) -> Any:
        """bool `(F,)`: last step of a trajectory, because the episode ended, or because the batch cut the episode."""
        done = self.terminated | self.truncated
        done[:-1] |= ~continues(self.env_ids, self.traj_ids, self.step_count)
        done[-1:] = True
        return done

    @property
    def mask(self) -> Any:
        """bool `(F,)`: always True."""
        return self.step_count >= 0

    @property
    def broken(self) -> Any:
        """bool `(F,)`: see `Rollout`."""
        return convert_like(np.isin(nest.as_array(self.traj_ids), self.broken_ids), self.reward)

    @property
    def dropped_rows(self) -> int:
        """Always 0: failed steps have no row."""
        return 0

    def _next_obs(self) -> Any:
        order = np.minimum(np.arange(1, self.frames + 1), max(0, self.frames - 1))
        following = pick(self.obs, order)
        nest.put(following, self.tail_rows, self.tail_obs)
        return following

    def flatten(self) -> FlatRollout:
        """Return this batch."""
        return self

    def to_tensordict(self) -> Any:
        """Return a `TensorDict` of shape `(F,)`; see `Rollout.to_tensordict`."""
        from collector.batch.tensordict_form import as_tensordict

        return as_tensordict(self, [*self.shape], ["time"])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Rollout(Steps):
    """T steps of each of N envs: arrays `(N, T, ...)`.

    The policy chose `action[n, t]` for `obs[n, t]`, and the env returned `next.obs[n, t]`; see docs/guarantees.md.

    Arrays are numpy, or torch tensors on `storing_device`. Dict and Tuple observations are dicts and tuples.

    Example::

        for batch in collector:
            target = batch.reward + 0.99 * ~batch.terminated * value(batch.next.obs)
            loss = (value(batch.obs) - target)[batch.mask] ** 2
    """

    all_obs: Any
    """`(N, T+1, ...)`: observation before each step, and after the last step."""
    final_obs: Any
    """`(K, ...)`: last observations of the K episodes that ended, ordered by time, then by env."""
    final_env: Any
    """int64 `(K,)`: batch row of each episode in `final_obs`."""
    final_time: Any
    """int64 `(K,)`: time index of each episode's last step."""
    mask: Any
    """bool `(N, T)`: False if the step failed (see `broken`), or if the env took no step. For example, the env had no
    further episode, or its host ends soon (Ray). Without a step, `traj_ids` is -1, and other columns are zero. `obs`
    is zero too, except right after the env's last step.
    """
    broken: Any
    """bool `(N, T)`: True for steps of an episode that ended because the env failed or its worker died, with
    `on_error="restart"`. The failed step has the action that was sent, `mask` False, `truncated` True, reward 0,
    and `next.obs` equal to `obs`. If the batch has the episode's previous step, that step is truncated too, with
    entries in `final_*`.
    """

    def __repr__(self) -> str:
        n, steps = self.shape
        ended = len(self.final_env)
        return f"Rollout({n} envs, {steps} steps, {self.frames} frames, {ended} episode ends{self._broken_text()})"

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, T)`."""
        return (self.reward.shape[0], self.reward.shape[1])

    @property
    def names(self) -> tuple[str, str]:
        """Names of the dimensions."""
        return ("env", "time")

    @property
    def frames(self) -> int:
        """Number of steps of all envs."""
        return int(self.mask.sum())

    @property
    def dropped_rows(self) -> int:
        """Number of failed steps."""
        return int((self.broken & ~self.mask).sum()) if len(self.broken_ids) else 0

    @property
    def done(self) -> Any:
        """bool `(N, T)`: the step ended the episode, or a row without a step follows. The last column is only True if
        the episode ended, because no row follows.
        """
        done = self.terminated | self.truncated
        done[:, :-1] |= self.mask[:, :-1] & ~self.mask[:, 1:]
        return done

    @property
    def obs(self) -> Any:
        """`(N, T, ...)`: observation before each step, a view of `all_obs`."""
        return nest.map(lambda rows: rows[:, :-1], self.all_obs)

    def _next_obs(self) -> Any:
        following = nest.map(lambda rows: copy_of(rows[:, 1:]), self.all_obs)
        nest.put(following, (self.final_env, self.final_time), self.final_obs)
        if len(self.broken_ids):  # after a failed step, `all_obs` has the observation of a reset
            failed = np.nonzero(nest.as_array(self.broken & ~self.mask))
            nest.put(following, tuple(convert_like(each, self.reward) for each in failed), pick(self.obs, *failed))
        return following

    def flatten(self) -> FlatRollout:
        """Return a copy of the steps in `mask`: `(frames, ...)`."""
        return FlatRollout(**flat_columns(self))

    def to_tensordict(self) -> Any:
        """Return a `TensorDict` of shape `(N, T)` with the keys of torchrl's collectors. Needs tensordict.

        Rewards are float32. Rewards and flags have a last dimension of 1 (m for vectors of m rewards). The key
        ("collector", "traj_ids") has the episode ids. A step that is `done` without being `terminated` is truncated, so
        that GAE and V-trace do not run from one episode into the next, or into padding.

        Raises TypeError for a column of objects or text, such as `agent_id` of `PettingZooEnv`, and ValueError if an
        observation and the TensorDict have the same key.
        """
        from collector.batch.tensordict_form import as_tensordict

        return as_tensordict(self, [*self.shape], [None, "time"])


class RewardError(ValueError):
    """A reward of episode `traj_id` is NaN. `policy` is True if the policy returned NaN."""

    traj_id = -1
    policy = False


class RewardShape:
    """Shape of an env's reward: `()` until an env returns a vector, then `(m,)`."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def fit(self, rewards: np.ndarray) -> np.ndarray:
        """Return the rewards in this shape. Scalars of a round without a successful step become zero vectors."""
        shape = rewards.shape[1:]
        if shape == self._shape:
            return rewards
        if not shape:
            return np.zeros((len(rewards), *self._shape))
        self._shape = shape
        return rewards


def check_rewards(batch: Rollout | FlatRollout) -> None:
    reward = batch._rewards
    if reward.dtype.kind != "f" or not np.isnan(reward).any():
        return
    at = tuple(np.argwhere(np.isnan(reward))[0][: len(batch.shape)])
    action = nest.map(nest.tensor_on_host, nest.take(batch.action, at))
    by_policy = any(leaf.dtype.kind == "f" and bool(np.isnan(leaf).any()) for leaf in nest.leaves(action))
    cause = " (the policy returned NaN)" if by_policy else ""
    error = RewardError(
        f"env {batch.env_ids[at[0]]} returned a reward of NaN in step {batch.step_count[at]} of its episode "
        f"{batch.traj_ids[at]}, for the action {action}{cause}"
    )
    error.traj_id, error.policy = int(batch.traj_ids[at]), by_policy
    raise error


def truncate_last(batch: Rollout | FlatRollout) -> None:
    """Mark the last step of each env that did not fail as truncated. The batch is in numpy."""
    if isinstance(batch, Rollout):
        envs, steps = batch.mask.nonzero()
        last = np.flatnonzero(np.diff(envs, append=-1))
        batch.truncated[envs[last], steps[last]] = True
    else:
        batch.truncated[np.flatnonzero(np.diff(batch.env_ids, append=-1))] = True


def runs_of(batch: Steps) -> Runs:
    """Return the runs of a batch, which are computed once."""
    return batch._runs


def rewards_of(batch: Steps) -> np.ndarray:
    """Return the rewards of a batch on the host, to which they are copied once."""
    return batch._rewards


def concatenate(batches: Sequence[FlatRollout], left_out: Sequence[np.ndarray] = ()) -> FlatRollout:
    """Join consecutive numpy batches. Drop failed episodes, and episodes with ids in `left_out`."""
    others = "tail_rows", "tail_obs", "broken_ids", "episode_returns"
    names = [each.name for each in fields(FlatRollout) if each.name not in others]
    columns = {name: join([getattr(batch, name) for batch in batches]) for name in names}
    broken_ids = np.concatenate([batch.broken_ids for batch in batches])
    kept = (~np.isin(columns["traj_ids"], np.concatenate([broken_ids, *left_out]))).nonzero()[0]
    rows = kept[np.argsort(columns["env_ids"][kept], kind="stable")]
    columns = nest.take(columns, rows)
    tails = tail_rows(columns)
    # Each row in `tails` is also a tail of its batch, so `known` contains it.
    starts = np.cumsum([0, *(batch.frames for batch in batches)])
    known = np.concatenate([batch.tail_rows + start for batch, start in zip(batches, starts, strict=False)])
    tail_obs = nest.take(join([batch.tail_obs for batch in batches]), np.searchsorted(known, rows[tails]))
    return FlatRollout(**columns, tail_rows=tails, tail_obs=tail_obs, broken_ids=np.unique(broken_ids))
