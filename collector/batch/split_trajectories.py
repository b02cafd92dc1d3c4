"""Batches with a row for each trajectory."""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.flat_rollout import FlatRollout, like
from collector.batch.rollout import Rollout
from vecenv import nest
from vecenv.backends.host.row_writer import cast_exactly


def split_trajectories(flat: FlatRollout, pad_value: float = 0) -> Rollout:
    """A row for each trajectory of a batch; see `Rollout.split_trajectories`.

    A trajectory is a run of steps with one id; in a flat batch the steps of an env stand together, in order.
    """
    ids, done = nest.as_array(flat.traj_ids), nest.as_array(flat.done)
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]) if len(ids) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(ids)])
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest) < lengths[:, None]
    rows = np.minimum(starts[:, None] + np.arange(longest), max(0, len(ids) - 1))

    def pad(column: Any, value: Any = pad_value) -> Any:
        padded = column[like(rows, column)]
        padded[like(~mask, padded)] = _padding(padded, value)
        return padded

    last = starts + lengths - 1
    ended = done[last]
    final_row, final_time = np.flatnonzero(ended), lengths[ended] - 1
    # Each trajectory ends in a tail, or goes on below in no row.
    place = np.searchsorted(nest.as_array(flat.tail_rows), last)
    after = nest.map(lambda rows: rows[like(place, rows)], flat.tail_obs)
    order = np.lexsort((final_row, final_time))
    return Rollout(
        all_obs=_with_last(nest.map(pad, flat.obs), after, lengths, pad_value),
        action=pad(flat.action),
        reward=pad(flat.reward),
        terminated=pad(flat.terminated, False),
        truncated=pad(flat.truncated, False),
        traj_ids=pad(flat.traj_ids, -1),
        step_count=pad(flat.step_count),
        policy_version=pad(flat.policy_version),
        env_ids=flat.env_ids[like(starts, flat.env_ids)],
        final_obs=nest.map(lambda rows: rows[like(final_row[order], rows)], after),
        final_env=like(final_row[order], flat.reward),
        final_time=like(final_time[order], flat.reward),
        mask=like(mask, flat.reward),
        broken=like(np.zeros_like(mask), flat.reward),
        broken_ids=flat.broken_ids,
        extras=nest.map(pad, flat.extras),
    )


def _padding(rows: Any, wanted: Any) -> Any:
    """What rows are padded with: `wanted`, or zero where their dtype has no such value."""
    value = cast_exactly(np.asarray(wanted), nest.as_array(rows[:0]).dtype)
    return 0 if value is None else value.item()


def _with_last(obs: Any, after: Any, lengths: np.ndarray, pad_value: float) -> Any:
    """Observations `(K, L+1, ...)`: one more column, and in each row what came after its last step."""
    trajectories = np.arange(len(lengths))

    def extend(rows: Any) -> Any:
        shape = (rows.shape[0], rows.shape[1] + 1, *rows.shape[2:])
        value = _padding(rows, pad_value)
        longer = np.full(shape, value, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_full(shape, value)
        longer[:, :-1] = rows
        return longer

    longer = nest.map(extend, obs)
    leaf = next(nest.leaves(longer))
    nest.put(longer, (like(trajectories, leaf), like(lengths, leaf)), after)
    return longer
