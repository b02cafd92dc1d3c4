"""Flat batches out of steps in the order in which they came, or out of other flat batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from collector.batch.arrays import join
from collector.batch.conversions import tail_rows
from collector.batch.rollout import FlatRollout
from vecenv import nest


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
