"""Forms of a batch: `(env, time, ...)`, flat (a row per step), and a row per trajectory.

The functions return dicts instead of batches, because `rollout.py` imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv import nest
from vecenv.nest import cast_exactly

if TYPE_CHECKING:
    from collector.batch.step_log import StepLog


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
    return nest.merge(lambda rows: nest.namespace(rows[0]).concatenate(rows), trees)


def zeros(like: Any, count: int) -> Any:
    """Return `count` rows of zeros like the rows `like`, an array or tensor."""
    shape = (count, *like.shape[1:])
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def in_float64(rows: Any) -> Any:
    """Return `rows` in float64, or in float32 on a device without float64."""
    if isinstance(rows, np.ndarray):
        return rows.astype(np.promote_types(rows.dtype, np.float64), copy=False)
    torch = nest.namespace(rows)
    return rows.to(torch.float64 if nest.has_float64(torch, rows.device) else torch.float32)


def resized(rows: Any, count: int) -> Any:
    """Return a copy of `rows` with zeros at its end, `count` rows in total."""
    longer = zeros(rows, count)
    longer[: len(rows)] = rows
    return longer


NO_IDS = np.zeros(0, np.int64)
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
    return {
        **columns,
        "tail_rows": convert_like(tails, rollout.reward),
        "tail_obs": obs_after(rollout, row[tails], time[tails]),
        "broken_ids": rollout.broken_ids,
        "episode_returns": rollout.episode_returns,
    }


def obs_after(rollout: Any, row: np.ndarray, time: np.ndarray) -> Any:
    """Return copies of the observations after the steps in these rows and times of a `Rollout`."""
    finals = np.full(rollout.shape, -1)
    finals[nest.as_array(rollout.final_env), nest.as_array(rollout.final_time)] = np.arange(len(rollout.final_env))
    found, final = pick(rollout.all_obs, row, time + 1), finals[row, time]
    ended = np.flatnonzero(final >= 0)  # for the others, `all_obs` has the observation
    nest.put(found, ended, pick(rollout.final_obs, final[ended]))
    return found


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


def rollout_columns(log: StepLog) -> dict[str, Any]:
    """Return the fields of a `Rollout`, as views of the log's memory."""
    n, counts = log.env_num, log.counts
    steps = int(counts.max())
    columns = {name: _by_env(tree, n, steps) for name, tree in log.columns.items() if name != "obs"}
    all_obs = _by_env(log.columns["obs"], n, steps + 1)
    known = {name: columns.pop(name) for name in ("action", "reward", "terminated", "truncated", "step_count")}
    traj_ids = columns.pop("traj_ids")
    recorded = np.arange(steps) < counts[:, None]
    if counts.min() < steps:
        _fill(all_obs, np.arange(steps + 1) > counts[:, None], 0)
        _fill((known, columns), ~recorded, 0)
        traj_ids[~recorded] = -1
    finals, mask, broken_ids, broken = log.finals, recorded, NO_IDS, np.zeros(recorded.shape, np.bool_)
    if log.failed:
        rows = np.concatenate(log.failed)
        failed = np.zeros(recorded.shape, np.bool_)
        failed[rows % n, rows // n] = True
        mask, broken_ids = recorded & ~failed, np.unique(traj_ids[failed])
        broken = np.isin(traj_ids, broken_ids) & recorded
        # The step before a failure ends the episode.
        env, time = (failed[:, 1:] & mask[:, :-1] & (traj_ids[:, 1:] == traj_ids[:, :-1])).nonzero()
        known["truncated"][env, time] = True
        finals = [*finals, (time * n + env, pick(all_obs, env, time + 1))]
    ended, final_obs = _join_finals(finals, all_obs)
    return {
        **known,
        "all_obs": all_obs,
        "traj_ids": traj_ids,
        "policy_version": np.full((n, steps), log.version),
        "env_ids": np.arange(n),
        "final_obs": final_obs,
        "final_env": ended % n,
        "final_time": ended // n,
        "mask": mask,
        "broken": broken,
        "broken_ids": broken_ids,
        "extras": columns,
    }


def _by_env(tree: Any, n: int, steps: int) -> Any:
    """Return a column of a log as `(N, steps, ...)`."""
    if not isinstance(tree, np.ndarray) and isinstance(tree, (dict, tuple)):
        return nest.map(lambda rows: _by_env(rows, n, steps), tree)
    return tree.reshape(len(tree) // n, n, *tree.shape[1:])[:steps].swapaxes(0, 1)


def _fill(tree: Any, where: np.ndarray, value: int) -> None:
    for rows in nest.leaves(tree):
        rows[convert_like(where, rows)] = value


def _join_finals(finals: Sequence[tuple[np.ndarray, Any]], all_obs: Any) -> tuple[np.ndarray, Any]:
    """Return the rows of all `finals` in ascending order, and their observations, on the device of `all_obs`."""
    ended = np.concatenate([rows for rows, _ in finals]) if finals else NO_IDS
    if not len(ended):
        return ended, nest.map(lambda rows: zeros(rows[0], 0), all_obs)
    order, last = np.argsort(ended), [obs for _, obs in finals]
    if isinstance(next(nest.leaves(last[0])), np.ndarray):
        last = [nest.map(nest.as_array, obs) for obs in last]
    obs = nest.take(join(last), order)
    return ended[order], nest.merge(lambda pair: convert_like(*pair), [obs, all_obs])


def arrived_columns(columns: dict[str, Any], rows: np.ndarray, failed: np.ndarray) -> dict[str, Any]:
    """Return the fields of a `FlatRollout` with the steps `rows`, ordered by env. `failed` marks steps to leave out.

    columns: columns of an `ArrivalLog`, without extras that the batch does not have.
    """
    order = np.argsort(columns["env_ids"][rows], kind="stable")
    rows, failed = rows[order], failed[order]
    ids, bad = columns["traj_ids"][rows], failed.nonzero()[0]
    before = bad[bad > 0] - 1
    columns["truncated"][rows[before[ids[before] == ids[before + 1]]]] = True
    rows = rows[~failed]
    found = {name: nest.take(tree, rows) for name, tree in columns.items()}  # one copy, as observations may be large
    tails = tail_rows(found)
    return {
        **{name: found.pop(name) for name in ("obs", "env_ids", *FIELDS[1:-1])},
        "tail_rows": tails,
        "tail_obs": nest.take(columns["obs"], found.pop("next_row")[tails]),
        "broken_ids": np.unique(ids[bad]),
        "extras": found,
    }
