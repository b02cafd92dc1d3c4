"""Convert batches between the forms `(env, time, ...)`, flat, and one row per trajectory.

These functions take a batch and return the columns of another by name, so `Rollout` and `FlatRollout` can be made of
each other without their modules importing each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.extending import cast_exactly


def copy_of(rows: Any) -> Any:
    """A copy of an array or a tensor, with the same layout in memory."""
    return rows.copy(order="K") if isinstance(rows, np.ndarray) else rows.clone()


def like(index: np.ndarray, array: Any) -> Any:
    """An index array for `array`: a tensor on its device where that is a tensor."""
    if isinstance(array, np.ndarray):
        return index
    from collector.device.tensors import to_device  # torch is there, but not needed for arrays

    return to_device(index, array.device)


def pick(tree: Any, *index: np.ndarray) -> Any:
    """The rows of a tree at an index array for each of the first dimensions; a copy."""
    return nest.map(lambda rows: rows[tuple(like(each, rows) for each in index)], tree)


def join(trees: Sequence[Any]) -> Any:
    """Trees of `(k, ...)` arrays, joined along their first dimension."""
    return nest.merge(np.concatenate, trees)


COLUMNS = ["obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version", "extras"]
"""The columns with a row for each step, in both forms."""
PADDING = {"terminated": False, "truncated": False, "traj_ids": -1}
"""The fixed padding of these columns."""


def flat_columns(rollout: Any) -> dict[str, Any]:
    """The columns of a `FlatRollout` with the steps that the mask of a `Rollout` marks."""
    mask = nest.as_array(rollout.mask)
    row, time = np.nonzero(mask)
    all_steps = len(row) == mask.size

    def steps(rows: Any) -> Any:
        if all_steps and isinstance(rows, np.ndarray):  # in order, which is several times as fast as an index
            return rows.copy().reshape(mask.size, *rows.shape[2:])
        return pick(rows, row, time)

    columns = {name: nest.map(steps, getattr(rollout, name)) for name in COLUMNS}
    tails = tail_rows(columns)
    at = row[tails], time[tails]
    tail_obs = pick(rollout.all_obs, at[0], at[1] + 1)
    finals = np.full(mask.shape, -1)
    finals[nest.as_array(rollout.final_env), nest.as_array(rollout.final_time)] = np.arange(len(rollout.final_env))
    final = finals[at]
    ended = np.flatnonzero(final >= 0)
    nest.put(tail_obs, ended, pick(rollout.final_obs, final[ended]))
    return {
        **columns,
        "env_ids": pick(rollout.env_ids, row),
        "tail_rows": like(tails, rollout.reward),
        "tail_obs": tail_obs,
        "broken_ids": rollout.broken_ids,
    }


def tail_rows(columns: dict[str, Any]) -> np.ndarray:
    """The rows of flat columns whose next observation is not that of the row below."""
    terminated, truncated, traj_ids = (nest.as_array(columns[name]) for name in ("terminated", "truncated", "traj_ids"))
    tail = terminated | truncated
    tail[:-1] |= np.diff(traj_ids) != 0
    tail[-1:] = True
    return np.flatnonzero(tail)


def trajectory_columns(flat: Any, pad_value: float) -> dict[str, Any]:
    """The columns of a `Rollout` with a row for each trajectory of a `FlatRollout`; see `Rollout.split_trajectories`.

    A trajectory is a run of steps with one id; in a flat batch the steps of an env stand together, in order.
    """
    ids, done = nest.as_array(flat.traj_ids), nest.as_array(flat.done)
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]) if len(ids) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(ids)])
    if len(flat.tail_rows) > len(starts):
        raise ValueError(
            "inside of trajectories this batch has next observations that are not those of the row below, as MultiStep "
            "makes them: split it before (split_trajs=True of the collector)"
        )
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest) < lengths[:, None]
    rows = np.minimum(starts[:, None] + np.arange(longest), max(0, len(ids) - 1))

    def pad(name: str) -> Any:
        def padded(column: Any) -> Any:
            column = pick(column, rows)
            column[like(~mask, column)] = _padding(column, PADDING.get(name, pad_value))
            return column

        return nest.map(padded, getattr(flat, name))

    last = starts + lengths - 1
    ended = done[last]
    final_row, final_time = np.flatnonzero(ended), lengths[ended] - 1
    order = np.lexsort((final_row, final_time))
    # Each trajectory ends in a tail.
    after = pick(flat.tail_obs, np.searchsorted(nest.as_array(flat.tail_rows), last))
    columns = {name: pad(name) for name in COLUMNS}
    all_obs = _with_last(columns.pop("obs"), after, lengths, pad_value)
    return {
        **columns,
        "all_obs": all_obs,
        "env_ids": pick(flat.env_ids, starts),
        "final_obs": pick(after, final_row[order]),
        "final_env": like(final_row[order], flat.reward),
        "final_time": like(final_time[order], flat.reward),
        "mask": like(mask, flat.reward),
        "broken": like(mask & np.isin(ids[starts], flat.broken_ids)[:, None], flat.reward),
        "broken_ids": flat.broken_ids,
    }


def _padding(rows: Any, wanted: float) -> Any:
    """The value that rows are padded with: `wanted`, or zero where their dtype has no such value."""
    value = cast_exactly(np.asarray(wanted), nest.as_array(rows[:0]).dtype)
    return 0 if value is None else value.item()


def _with_last(obs: Any, after: Any, lengths: np.ndarray, pad_value: float) -> Any:
    """Observations `(K, L+1, ...)`: one more column, which holds in each row the observation after its last step."""

    def extend(rows: Any) -> Any:
        shape = (rows.shape[0], rows.shape[1] + 1, *rows.shape[2:])
        value = _padding(rows, pad_value)
        longer = np.full(shape, value, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_full(shape, value)
        longer[:, :-1] = rows
        return longer

    longer = nest.map(extend, obs)
    leaf = next(nest.leaves(longer))
    nest.put(longer, (like(np.arange(len(lengths)), leaf), like(lengths, leaf)), after)
    return longer
