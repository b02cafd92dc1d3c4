"""Episodes that broke off because their env failed (a vector env with `on_error="restart"`).

The step in which an env fails is not taken. Those before it are, so the last of them ends the episode::

    row          0    1    2    3     4    5
    env 1        s0   s1   s2#  fails s0   s1     # = truncated; next.obs[2] is what the policy saw before row 3
    mask         T    T    T    F     T    T
    broken       T    T    T    T     F    F
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from collector.batch.arrays import join, pick
from collector.batch.rollout import Rollout
from vecenv import nest


def end_before_failures(batch: Rollout) -> Rollout:
    """The numpy batch in which each episode that broke off ends with its last real step, where that is in the batch."""
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
