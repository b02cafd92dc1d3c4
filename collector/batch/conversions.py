"""Convert batches between three forms: `(env, time, ...)`, flat (a row per step), and a row per trajectory.

The functions return dicts instead of batches, because `rollout.py` imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.nest import cast_exactly


def copy_of(rows: Any) -> Any:
    return rows.copy(order="K") if isinstance(rows, np.ndarray) else rows.clone()


def convert_like(values: np.ndarray, reference: Any) -> Any:
    if isinstance(reference, np.ndarray):
        return values
    from collector.device.tensors import to_device  # here, so that arrays need no torch

    return to_device(values, reference.device)


def pick(tree: Any, *index: np.ndarray) -> Any:
    """Return a copy of the rows at `index`: an index array for each leading dimension."""
    return nest.map(lambda rows: rows[tuple(convert_like(each, rows) for each in index)], tree)


def join(trees: Sequence[Any]) -> Any:
    return nest.merge(np.concatenate, trees)


FIELDS = ["obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version", "extras"]
PADDING = {"terminated": False, "truncated": False, "traj_ids": -1}


def flat_columns(rollout: Any) -> dict[str, Any]:
    mask = nest.as_array(rollout.mask)
    row, time = np.nonzero(mask)
    all_steps = len(row) == mask.size

    def steps(rows: Any) -> Any:
        if all_steps and isinstance(rows, np.ndarray):  # a copy is faster than an index
            return rows.copy().reshape(mask.size, *rows.shape[2:])
        return pick(rows, row, time)

    columns = {name: nest.map(steps, getattr(rollout, name)) for name in FIELDS}
    columns["env_ids"] = pick(rollout.env_ids, row)
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
        "tail_rows": convert_like(tails, rollout.reward),
        "tail_obs": tail_obs,
        "broken_ids": rollout.broken_ids,
        "episode_returns": rollout.episode_returns,
    }


def continues(env_ids: Any, traj_ids: Any, step_count: Any) -> Any:
    """Return for each row but the first: True if it is the next step of the episode of the row before.

    Ids alone do not separate trajectories: `episode_seeds` may give an env the same number twice in a row (a retry).
    """
    same = (env_ids[1:] == env_ids[:-1]) & (traj_ids[1:] == traj_ids[:-1])
    return same & (step_count[1:] == step_count[:-1] + 1)


def trajectory_bounds(env_ids: Any, traj_ids: Any, step_count: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each trajectory, and the row after the trajectory's last row."""
    rows = map(nest.as_array, (env_ids, traj_ids, step_count))
    is_start = np.ones(len(traj_ids), np.bool_)
    is_start[1:] = ~continues(*rows)
    starts = np.flatnonzero(is_start)
    return starts, np.append(starts[1:], len(is_start))[: len(starts)]


def tail_rows(columns: dict[str, Any]) -> np.ndarray:
    tail = nest.as_array(columns["terminated"]) | nest.as_array(columns["truncated"])
    _, stops = trajectory_bounds(columns["env_ids"], columns["traj_ids"], columns["step_count"])
    tail[stops - 1] = True
    return np.flatnonzero(tail)


def trajectory_columns(flat: Any, pad_value: float) -> dict[str, Any]:
    ids, ended = nest.as_array(flat.traj_ids), nest.as_array(flat.terminated | flat.truncated)
    starts, stops = trajectory_bounds(flat.env_ids, ids, flat.step_count)
    lengths = stops - starts
    if np.ndim(pad_value) or np.asarray(pad_value).dtype.kind not in "biuf":
        raise TypeError(f"pad_value must be a number, got {pad_value!r}")
    if len(flat.tail_rows) > len(starts):
        raise ValueError(
            "a batch of MultiStep cannot be split, because its next observations are several steps later: split it "
            "before MultiStep (split_trajs=True of the collector)"
        )
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest) < lengths[:, None]
    rows = np.minimum(starts[:, None] + np.arange(longest), max(0, len(ids) - 1))

    def pad(name: str) -> Any:
        def padded(column: Any) -> Any:
            column = pick(column, rows)
            nest.put(column, convert_like(~mask, column), _filled((), column, PADDING.get(name, pad_value)))
            return column

        return nest.map(padded, getattr(flat, name))

    last = starts + lengths - 1
    ended = ended[last]
    final_row, final_time = np.flatnonzero(ended), lengths[ended] - 1
    order = np.lexsort((final_row, final_time))
    after = pick(flat.tail_obs, np.searchsorted(nest.as_array(flat.tail_rows), last))
    columns = {name: pad(name) for name in FIELDS}
    all_obs = _with_last(columns.pop("obs"), after, lengths, pad_value)
    return {
        **columns,
        "all_obs": all_obs,
        "env_ids": pick(flat.env_ids, starts),
        "final_obs": pick(after, final_row[order]),
        "final_env": convert_like(final_row[order], flat.reward),
        "final_time": convert_like(final_time[order], flat.reward),
        "mask": convert_like(mask, flat.reward),
        "broken": convert_like(mask & np.isin(ids[starts], flat.broken_ids)[:, None], flat.reward),
        "broken_ids": flat.broken_ids,
        "episode_returns": flat.episode_returns,
    }


def _filled(shape: tuple[int, ...], rows: Any, wanted: float) -> Any:
    """Return an array like `rows`, filled with `wanted`, or with zero if the dtype cannot hold this value."""
    cast = cast_exactly(np.asarray(wanted), nest.as_array(rows[:0]).dtype)
    value = 0 if cast is None else cast.item()
    return np.full(shape, value, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_full(shape, value)


def _with_last(obs: Any, after: Any, lengths: np.ndarray, pad_value: float) -> Any:
    """Append a time step to `obs`, and write `after[i]` into row i at time `lengths[i]`."""

    def extend(rows: Any) -> Any:
        longer = _filled((rows.shape[0], rows.shape[1] + 1, *rows.shape[2:]), rows, pad_value)
        longer[:, :-1] = rows
        return longer

    longer = nest.map(extend, obs)
    leaf = next(nest.leaves(longer))
    nest.put(longer, (convert_like(np.arange(len(lengths)), leaf), convert_like(lengths, leaf)), after)
    return longer
