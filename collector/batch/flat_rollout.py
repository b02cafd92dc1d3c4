"""A batch of collected steps in one dimension: by env, then by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from collector.batch.steps import Next, Steps
from vecenv import nest


@dataclass(frozen=True, eq=False, repr=False)
class FlatRollout(Steps):
    """F steps, `(F, ...)`: ordered by env, then by time; envs may have different numbers of steps.

    What `AsyncDataCollector` collects, and what `Rollout.flatten` gives. Names mean what they mean in `Rollout`; there
    is no padding. The observation after a step is that before the next row, and is stored beside where it is not.
    """

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    traj_ids: Any
    step_count: Any
    policy_version: Any
    env_ids: Any
    """int64 `(F,)`: the env of each step."""
    tail_rows: Any
    """int64 `(K,)`: the rows whose next observation is not that of the row below: episodes and envs end."""
    tail_obs: Any
    """`(K, ...)`: the next observations of those rows."""
    broken_ids: np.ndarray
    """The `traj_ids` of episodes that broke off because their env failed. Their steps in this batch are left
    out; those in earlier ones have these ids. A numpy array on every device."""
    extras: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        envs, ended = len(np.unique(nest.as_array(self.env_ids))), int(self.done.sum())
        return f"FlatRollout({envs} envs, {self.frames} frames, {ended} episode ends)"

    @property
    def shape(self) -> tuple[int]:
        """`(F,)`."""
        return (self.reward.shape[0],)

    @property
    def names(self) -> tuple[str]:
        """What the dimension is."""
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
    def next(self) -> Next:
        """What came after each step. The observations are put together on each access, as a copy."""
        order = np.minimum(np.arange(1, self.frames + 1), max(0, self.frames - 1))
        following = nest.map(lambda rows: rows[like(order, rows)], self.obs)
        nest.put(following, self.tail_rows, self.tail_obs)
        return self._followed_by(following)

    def flatten(self) -> FlatRollout:
        """Itself."""
        return self

    def to_tensordict(self) -> Any:
        """The batch as a `TensorDict` of shape `(F,)`; see `Rollout.to_tensordict`.

        A row whose episode goes on, but not in the row below (the last of each env), is marked there as
        `set_truncated` marks it: truncated and done under "next". So what runs along "time" (GAE, TD(lambda), V-trace)
        never goes from one env into the next. The batch itself is left as it is.
        """
        from collector.batch.tensordict_form import as_tensordict

        truncated = copy_of(self.truncated)
        truncated[self.tail_rows] |= ~self.terminated[self.tail_rows]
        return as_tensordict(replace(self, truncated=truncated), [*self.shape], ["time"])


def concatenate(batches: Sequence[FlatRollout], left_out: Sequence[np.ndarray] = ()) -> FlatRollout:
    """Consecutive batches of one collector as one, ordered by env again. Numpy batches.

    Episodes that broke off in a later one are left out of the earlier ones too, and those with ids in `left_out`.
    """
    env_ids, traj_ids, broken = (
        np.concatenate([getattr(batch, name) for batch in batches]) for name in ("env_ids", "traj_ids", "broken_ids")
    )
    order = np.argsort(env_ids, kind="stable")
    order = order[~np.isin(traj_ids[order], np.concatenate([broken, *left_out]))]
    after = join([batch.next.obs for batch in batches])
    joined = {
        each.name: join([getattr(batch, each.name) for batch in batches])
        for each in fields(FlatRollout)
        if each.name not in ("tail_rows", "tail_obs", "broken_ids")
    }
    columns = {name: nest.take(tree, order) for name, tree in joined.items()}
    return with_tails(columns, nest.take(after, order), broken)


def with_tails(columns: dict[str, Any], next_obs: Any, broken_ids: np.ndarray) -> FlatRollout:
    """A batch of the columns by name, with the next observations that are not those of the row below."""
    tail = columns["terminated"] | columns["truncated"]
    tail[:-1] |= np.diff(columns["traj_ids"]) != 0
    tail[-1:] = True
    tail_rows = np.flatnonzero(tail)
    return FlatRollout(
        **columns, tail_rows=tail_rows, tail_obs=nest.take(next_obs, tail_rows), broken_ids=np.unique(broken_ids)
    )


def join(trees: Sequence[Any]) -> Any:
    """Trees of `(k, ...)` arrays, joined along their first dimension."""
    return nest.merge(np.concatenate, trees)


def copy_of(rows: Any) -> Any:
    """A copy of an array or a tensor, with the same layout in memory."""
    return rows.copy(order="K") if isinstance(rows, np.ndarray) else rows.clone()


def like(index: np.ndarray, array: Any) -> Any:
    """An index array for `array`: a tensor on its device where that is a tensor."""
    if isinstance(array, np.ndarray):
        return index
    from collector.device.tensors import to_device

    return to_device(index, array.device)
