"""Rollouts on their way: as arrays that travel without a copy, and put together to one batch.

Arrays are sent time first, `(T, N, ...)`, as they lie in the actor's memory. Those that arrive are read-only views of
Ray's store; each is copied once, into its columns of the batch, so that the store is free again at once::

    batch (T, A * N, ...)   | actor 0: N columns | actor 1 | ... | actor A-1 |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from vecenv import nest

Columns = dict[str, Any]

STEPS = ["all_obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count", "policy_version"]
STEPS += ["mask", "broken", "extras"]
"""The entries with a row for each env and a column for each step; others belong to envs, or to ends of episodes."""


def pack(batch: Rollout) -> tuple[Columns, int]:
    """The arrays of a numpy rollout as they travel, and their size in bytes."""
    columns: Columns = {name: nest.map(lambda rows: rows.swapaxes(0, 1), getattr(batch, name)) for name in STEPS}
    for name in ("env_ids", "broken_ids", "final_obs", "final_env", "final_time"):
        columns[name] = getattr(batch, name)
    return columns, sum(leaf.nbytes for leaf in nest.leaves(columns))


class BatchAssembler:
    """Puts packed rollouts of as many steps and envs each side by side, in arrays that belong to the caller."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._steps: Columns | None = None
        self._rest: dict[int, Columns] = {}

    def __len__(self) -> int:
        return len(self._rest)

    def __contains__(self, slot: int) -> bool:
        return slot in self._rest

    def add(self, slot: int, columns: Columns) -> None:
        """Copy a rollout into its slot. Raises `ValueError` where its arrays have not the form of those before."""
        steps = {name: columns[name] for name in STEPS}
        env_num = len(columns["env_ids"])
        if self._steps is None:
            self._steps = nest.map(lambda rows: self._allocate(rows, env_num), steps)
        where = slice(slot * env_num, (slot + 1) * env_num)
        self._add_missing(self._steps["extras"], steps["extras"])
        nest.merge(lambda pair: _copy(pair[0], where, pair[1]), [self._steps, steps])
        # These are small, and copied when they are joined; the store would keep all of them while one is in use.
        rest = {name: tree for name, tree in columns.items() if name not in STEPS}
        self._rest[slot] = nest.map(np.array, rest)

    def _add_missing(self, own: Columns, extras: Columns) -> None:
        """Zeros for extras that only some rollouts have: an actor knows those of `info_keys` once an info had them."""
        for name in extras.keys() - own.keys():
            rows = extras[name]
            own[name] = np.zeros((len(rows), self._slots * rows.shape[1], *rows.shape[2:]), rows.dtype)
        for name in own.keys() - extras.keys():
            rows = own[name]
            extras[name] = np.zeros((len(rows), rows.shape[1] // self._slots, *rows.shape[2:]), rows.dtype)

    def finish(self) -> Rollout:
        """The batch of the slots that are filled, in their order."""
        assert self._steps is not None
        filled = sorted(self._rest)
        parts = [self._rest[slot] for slot in filled]
        env_num = len(parts[0]["env_ids"])
        steps: Columns = self._steps
        if len(filled) < self._slots:
            rows = (np.array(filled)[:, None] * env_num + np.arange(env_num)).ravel()
            steps = nest.map(lambda each: each[:, rows], steps)
        joined = nest.merge(np.concatenate, parts)
        joined["final_env"] += np.repeat(np.arange(len(parts)), [len(each["final_env"]) for each in parts]) * env_num
        order = np.lexsort((joined["final_env"], joined["final_time"]))
        for name in ("final_env", "final_time", "final_obs"):
            joined[name] = nest.take(joined[name], order)
        joined["broken_ids"] = np.unique(joined["broken_ids"])
        return Rollout(**nest.map(lambda rows: rows.swapaxes(0, 1), steps), **joined)

    def _allocate(self, rows: np.ndarray, env_num: int) -> np.ndarray:
        return np.empty((len(rows), self._slots * env_num, *rows.shape[2:]), rows.dtype)


def _copy(own: np.ndarray, envs: slice, rows: np.ndarray) -> None:
    """Copy the rows of one actor into their columns."""
    if (own.dtype, own.shape[0], own.shape[2:]) != (rows.dtype, rows.shape[0], rows.shape[2:]):
        raise ValueError(
            f"rollouts of actors do not fit together: arrays of {own.dtype} {(own.shape[0], *own.shape[2:])} and of "
            f"{rows.dtype} {(rows.shape[0], *rows.shape[2:])}, (steps, ...); make_venv must make envs with the same "
            "spaces and rewards in every actor"
        )
    own[:, envs] = rows
