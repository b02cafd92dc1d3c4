"""`Rollout` `(env, time, ...)` and `FlatRollout` `(step, ...)`: batches of collected steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from collector.batch.conversions import copy_of, flat_columns, join, like, pick, tail_rows, trajectory_columns
from vecenv import nest

Self = TypeVar("Self", bound="Steps")


class Next(NamedTuple):
    """The observations, rewards and flags after each step of a batch."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    step_count: Any

    @property
    def done(self) -> Any:
        """Bool: the episode was over after the step."""
        return self.terminated | self.truncated


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Steps(ABC):
    """The base of `Rollout` and `FlatRollout`. Arrays have one entry for each step."""

    action: Any
    """As the envs got it: an array, or a tree of arrays where the policy returned one (Dict and Tuple spaces)."""
    reward: Any
    """float64; with a last dimension `(m,)` where rewards are vectors."""
    terminated: Any
    truncated: Any
    traj_ids: Any
    """int64: the episode a step belongs to. The k-th episode of env n has the id `k * N + n`."""
    step_count: Any
    """int64: how many steps of its episode came before."""
    policy_version: Any
    """int64: how often the policy's weights had been updated; -1 where a random action took its place."""
    env_ids: Any
    """int64: the env of each row, that is of each step of a `FlatRollout`."""
    broken_ids: np.ndarray
    """The `traj_ids` of episodes that broke off here because their env failed. What came before in earlier batches has
    these ids; where the env failed in its first row of a batch, the last step is there. A numpy array on every
    device."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Extras that the policy returned with the action, and those of a step hook, by name."""

    @property
    def done(self) -> Any:
        """Bool, one a step: it ended its episode."""
        return self.terminated | self.truncated

    @property
    def random(self) -> Any:
        """Bool, one a step: the action was drawn at random, in place of the policy's."""
        return self.policy_version < 0

    def _followed_by(self, obs: Any) -> Next:
        """`next`, with these observations; padding, which has no episode, counts no step."""
        return Next(obs, self.reward, self.terminated, self.truncated, self.step_count + (self.traj_ids >= 0))

    def _broken_text(self) -> str:
        count = len(self.broken_ids)
        return f", {count} broken episode{'s' * (count > 1)}" if count else ""

    @abstractmethod
    def flatten(self) -> FlatRollout:
        """The same steps in one dimension."""

    def split_trajectories(self, pad_value: float = 0) -> Rollout:
        """A row for each trajectory, as long as the longest, padded; rows by env, then by time.

        `mask` marks what is no padding, `env_ids` holds the env of each. Padding has the `traj_ids` -1, and `pad_value`
        elsewhere: zero where a dtype has no such value (-1 in uint8, NaN in integers); flags: False. Trajectories that
        go on in the next batch are split there. Raises `ValueError` for a batch that `MultiStep` has made.
        """
        return Rollout(**trajectory_columns(self.flatten(), pad_value))

    def to(self: Self, device: Any) -> Self:
        """The same batch as torch tensors on `device` (which share this memory where the device is the CPU).

        Raises `TypeError` that names the entry for which torch has no dtype (Python objects, text).
        """
        from collector.device.tensors import check_dtypes, to_device  # here, because numpy batches need no torch

        names = [each.name for each in fields(self) if each.name != "broken_ids"]
        for name in names:
            check_dtypes(name.removeprefix("all_"), getattr(self, name))
        return replace(self, **{name: to_device(getattr(self, name), device) for name in names})


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FlatRollout(Steps):
    """F steps, `(F, ...)`: ordered by env, then by time; envs may have different numbers of steps.

    What `AsyncDataCollector` collects, and what `Rollout.flatten` returns. Names mean what they mean in `Rollout`.
    There is no padding, and no row for a step in which an env failed. The observation after a step is that before the
    next row, and is stored in `tail_obs` where it is not.
    """

    obs: Any
    tail_rows: Any
    """int64 `(K,)`: the rows whose next observation is not that of the row below: episodes and envs end."""
    tail_obs: Any
    """`(K, ...)`: the next observations of those rows."""

    def __repr__(self) -> str:
        envs, ended = len(np.unique(nest.as_array(self.env_ids))), int(self.done.sum())
        return f"FlatRollout({envs} envs, {self.frames} frames, {ended} episode ends{self._broken_text()})"

    @property
    def shape(self) -> tuple[int]:
        """`(F,)`."""
        return (self.reward.shape[0],)

    @property
    def names(self) -> tuple[str]:
        """The name of the dimension."""
        return ("time",)

    @property
    def frames(self) -> int:
        """Steps in the batch."""
        return int(self.reward.shape[0])

    @property
    def mask(self) -> Any:
        """Bool `(F,)`, all True: there is no padding."""
        return self.step_count >= 0

    @property
    def broken(self) -> Any:
        """Bool `(F,)`: the steps of episodes that broke off in this batch; see `Rollout`."""
        return like(np.isin(nest.as_array(self.traj_ids), self.broken_ids), self.reward)

    @property
    def dropped_rows(self) -> int:
        """0: steps in which an env failed have no row."""
        return 0

    @property
    def next(self) -> Next:
        """Observations, rewards and flags after each step. The observations are put together on each access, as a
        copy.
        """
        order = np.minimum(np.arange(1, self.frames + 1), max(0, self.frames - 1))
        following = pick(self.obs, order)
        nest.put(following, self.tail_rows, self.tail_obs)
        return self._followed_by(following)

    def flatten(self) -> FlatRollout:
        """This batch."""
        return self

    def to_tensordict(self) -> Any:
        """The batch as a `TensorDict` of shape `(F,)`; see `Rollout.to_tensordict`.

        A row whose episode goes on, but not in the row below (the last of each env), is marked there as `set_truncated`
        marks it: truncated and done under "next". So what runs along "time" (GAE, TD(lambda), V-trace) never goes from
        one env into the next. The batch itself does not change.
        """
        from collector.batch.tensordict_form import as_tensordict  # here, because it needs tensordict

        ends = like(np.diff(nest.as_array(self.traj_ids), append=-1) != 0, self.reward)
        truncated = self.truncated | (ends & ~self.terminated)
        return as_tensordict(replace(self, truncated=truncated), [*self.shape], ["time"])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Rollout(Steps):
    """Steps of N envs, T each: arrays of shape `(N, T, ...)`; the last of the two dimensions is time.

    `obs[n, t]` is what the policy saw before `action[n, t]`, `next.obs[n, t]` what came after it; docs/guarantees.md
    ("Batches of a collector") has the guarantees. Observations are stored once, in `all_obs`, and not a second time as
    next ones.

    Arrays are numpy, or torch tensors on `storing_device` when the collector has one. Observations are trees (a dict or
    tuple of arrays) where the space is Dict or Tuple. After `split_trajectories` a row is a trajectory instead of an
    env.

    Example::

        for batch in collector:
            target = batch.reward + 0.99 * ~batch.terminated * value(batch.next.obs)
            loss = (value(batch.obs) - target)[batch.mask] ** 2
    """

    all_obs: Any
    """`(N, T+1, ...)`: row t is the observation before step t; the last one what there was after the last step."""
    final_obs: Any
    """`(K, ...)`: the last observations of the K episodes that ended here, ordered by time, then env."""
    final_env: Any
    """int64 `(K,)`: the row in which each of them ended."""
    final_time: Any
    """int64 `(K,)`: the step with which each of them ended."""
    mask: Any
    """Bool `(N, T)`: False where no step was taken: the env failed (see `broken`), or had all its episodes. What a step
    records is zero where an env had all its episodes; only the first such row of `obs` is not: it is what came after
    the last step, as row T of `all_obs` is in a full batch."""
    broken: Any
    """Bool `(N, T)`: True for the rows of an episode that broke off because its env failed, or another env of a worker
    that died (a vector env with `on_error="restart"`). The row of the failure has the action that was chosen, `mask`
    False, `truncated` True, no reward, and as `next.obs` its `obs`. The steps before it are real; the last of them is
    `truncated`, where it is in the batch, and among `final_env` and `final_time`."""

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
        """The names of the two dimensions."""
        return ("env", "time")

    @property
    def frames(self) -> int:
        """Steps in the batch, all envs together."""
        return int(self.mask.sum())

    @property
    def dropped_rows(self) -> int:
        """Rows for steps that were not taken because an env failed: one for each of `broken_ids` at most."""
        return int((self.broken & ~self.mask).sum()) if len(self.broken_ids) else 0

    @property
    def obs(self) -> Any:
        """`(N, T, ...)`: the observation before each step (a view of `all_obs`)."""
        return nest.map(lambda rows: rows[:, :-1], self.all_obs)

    @property
    def next(self) -> Next:
        """Observations, rewards and flags after each step. The observations are put together on each access, as a
        copy.
        """
        following = nest.map(lambda rows: copy_of(rows[:, 1:]), self.all_obs)
        nest.put(following, (self.final_env, self.final_time), self.final_obs)
        if len(self.broken_ids):  # where no step was taken, the env was reset next
            failed = np.nonzero(nest.as_array(self.broken & ~self.mask))
            nest.put(following, tuple(like(each, self.reward) for each in failed), pick(self.obs, *failed))
        return self._followed_by(following)

    def flatten(self) -> FlatRollout:
        """The steps that `mask` marks, `(frames, ...)`: by row, then by time. A copy."""
        return FlatRollout(**flat_columns(self))

    def to_tensordict(self) -> Any:
        """The batch as torchrl's collectors return it: a `TensorDict` of shape `(N, T)`; needs `vecenv[torch]` and
        tensordict.

        Rewards and flags have a last dimension of 1, and rewards are float32 (also where they are vectors); those of
        the batch stay float64. `next` holds what came after each step, and ("collector", "traj_ids") the episodes.

        Raises `TypeError` that names the entry where one is an array of objects or text, as is the `agent_id` of
        `PettingZooEnv`.
        """
        from collector.batch.tensordict_form import as_tensordict  # here, because it needs tensordict

        return as_tensordict(self, [*self.shape], [None, "time"])


class RewardError(ValueError):
    """A reward is NaN. `traj_id` is its episode; `policy`: whether the policy is to blame, which returned NaN."""

    traj_id = -1
    policy = False


class RewardShape:
    """The reward shape of a vector env: `(m,)` once an env has returned a vector, `()` before."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def fit(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards `(k, ...)` in that shape. Where all k envs failed before they returned a vector, they are `(k,)`."""
        shape = rewards.shape[1:]
        if shape == self._shape:
            return rewards
        if not shape:
            return np.zeros((len(rewards), *self._shape))
        self._shape = shape
        return rewards


def check_rewards(batch: Rollout | FlatRollout) -> None:
    """Raise `RewardError`, a `ValueError`, where a reward is NaN."""
    reward = batch.reward
    if reward.dtype.kind != "f" or not np.isnan(reward).any():
        return
    at = tuple(np.argwhere(np.isnan(reward))[0][: len(batch.shape)])
    action = nest.take(batch.action, at)
    by_policy = any(leaf.dtype.kind == "f" and bool(np.isnan(leaf).any()) for leaf in nest.leaves(action))
    cause = " (the policy returned NaN)" if by_policy else ""
    error = RewardError(
        f"env {batch.env_ids[at[0]]} returned a reward of NaN in step {batch.step_count[at]} of its episode "
        f"{batch.traj_ids[at]}, for the action {action}{cause}"
    )
    error.traj_id, error.policy = int(batch.traj_ids[at]), by_policy
    raise error


def truncate_last(batch: Rollout | FlatRollout) -> None:
    """Mark the last step of each env as truncated; ends that are there stay, and no episode is reset."""
    if isinstance(batch, Rollout):
        count = (batch.mask | batch.broken).sum(1)
        rows = np.flatnonzero(count)
        batch.truncated[rows, count[rows] - 1] = True
    else:
        batch.truncated[np.flatnonzero(np.diff(batch.env_ids, append=-1))] = True


def concatenate(batches: Sequence[FlatRollout], left_out: Sequence[np.ndarray] = ()) -> FlatRollout:
    """Consecutive numpy batches of one collector as one, ordered by env again.

    Episodes that broke off in a later one are left out of the earlier ones too, and those with ids in `left_out`.
    """
    names = [each.name for each in fields(FlatRollout) if each.name not in ("tail_rows", "tail_obs", "broken_ids")]
    columns = {name: join([getattr(batch, name) for batch in batches]) for name in names}
    columns["next_obs"] = join([batch.next.obs for batch in batches])
    broken_ids = np.concatenate([batch.broken_ids for batch in batches])
    kept = ~np.isin(columns["traj_ids"], np.concatenate([broken_ids, *left_out]))
    return by_env(nest.take(columns, kept), broken_ids)


def by_env(columns: dict[str, Any], broken_ids: np.ndarray) -> FlatRollout:
    """A batch of columns by name, `next_obs` among them: ordered by env."""
    columns = nest.take(columns, np.argsort(columns["env_ids"], kind="stable"))
    next_obs, tails = columns.pop("next_obs"), tail_rows(columns)
    return FlatRollout(
        **columns, tail_rows=tails, tail_obs=nest.take(next_obs, tails), broken_ids=np.unique(broken_ids)
    )


def without_failures(columns: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Columns of steps in the order in which they came, without the rows that their column `failed` marks; and the ids
    of the episodes that broke off there. Those end with their last row.
    """
    columns = nest.take(columns, np.argsort(columns["env_ids"], kind="stable"))
    failed, ids = columns.pop("failed"), columns["traj_ids"]
    rows = failed.nonzero()[0]
    before = rows[rows > 0] - 1
    columns["truncated"][before[ids[before] == ids[before + 1]]] = True
    return nest.take(columns, ~failed), np.unique(ids[failed])
