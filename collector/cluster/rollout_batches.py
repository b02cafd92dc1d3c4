"""`RolloutBatches`: combines the rollouts of actors into batches.

With `sync`, a batch has a rollout of each actor. Between batches, only actors that missed the last batch collect.
Without `sync`, a batch is the rollout that finished first, and all actors keep collecting.

Rollouts of T steps and N envs arrive in read-only memory of Ray's store. Each is copied once, which frees the store::

    batch (T, A * N, ...)   | actor 0: N columns | actor 1 | ... | actor A-1 |
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.step_extras import blank
from collector.cluster.actor_pool import Actor, ActorPool, ReceivedRollout
from collector.cluster.rollout_actor import STEPS, Columns
from collector.policy.weights import PublishedWeights
from vecenv import nest


class RolloutBatches:
    """Source of batches. Each rollout has `frames` steps.

    Args:
        depth: Maximum rollouts in flight per actor.
        max_bytes: Maximum bytes in flight of all actors. One rollout is always allowed.
        straggler_timeout: Seconds that a sync batch waits after its first rollout.
    """

    def __init__(
        self,
        pool: ActorPool,
        weights: PublishedWeights,
        frames: int,
        depth: int,
        max_bytes: float,
        straggler_timeout: float | None,
    ) -> None:
        self._pool, self._weights, self._frames = pool, weights, frames
        self._depth, self._max_bytes, self._straggler_timeout = depth, max_bytes, straggler_timeout
        self._received: list[ReceivedRollout] = []
        self._rollout_bytes = 0

    def of_all(self, random_frames: int) -> Rollout:
        """Return a batch with a rollout of each actor that is not dropped, late or without resources.

        New rollouts have random actions if fewer than `random_frames` steps were in flight at the start of the call.
        """
        batch = Assembler(len(self._pool.actors))
        all_or_none = math.inf if self._pool.frames_in_flight < random_frames else 0
        until = math.inf
        while missing := [actor for actor in self._pool.usable if actor.index not in batch.slots]:
            if time.monotonic() >= until:
                break
            self._request(missing, all_or_none)
            arrived = self._pool.next_answer(None if until == math.inf else max(0.0, until - time.monotonic()))
            if arrived is not None:
                self._add(batch, arrived.actor.index, arrived)
                if until == math.inf and self._straggler_timeout is not None:
                    until = time.monotonic() + self._straggler_timeout
        return self._finish(batch)

    def first(self, random_frames: int) -> Rollout:
        """Return the rollout that finished first.

        New rollouts have random actions if fewer than `random_frames` steps are in flight.
        """
        batch = Assembler(1)
        while not batch.slots:
            self._request(self._by_requested_steps(), random_frames)
            if (arrived := self._pool.next_answer()) is not None:
                self._add(batch, 0, arrived)
        # The actor collects while the caller learns.
        self._request(self._by_requested_steps(), random_frames - self._frames)
        return self._finish(batch)

    def _by_requested_steps(self) -> list[Actor]:
        """Sort the actors by requested steps, because `max_bytes` may exclude the last."""
        return sorted(self._pool.usable, key=lambda actor: actor.stats.requested)

    def _request(self, actors: Sequence[Actor], random_frames: float) -> None:
        version, weights = self._weights.reference()  # read once, because an update may arrive
        most = self._depth if self._rollout_bytes else 1  # 1 until the size of a rollout is known
        asked = [actor.rollouts for actor in self._pool.actors]
        in_flight = sum(asked)
        for depth in range(1, most + 1):
            for actor in actors:
                if in_flight and (in_flight + 1) * self._rollout_bytes > self._max_bytes:
                    return
                if asked[actor.index] < depth:
                    asked[actor.index] += 1
                    in_flight += 1
                    new, actor.weights = None if actor.weights is weights else weights, weights
                    is_random = self._pool.frames_in_flight < random_frames
                    self._pool.ask(actor, self._frames, version, new, is_random)

    def _add(self, batch: Assembler, slot: int, arrived: ReceivedRollout) -> None:
        self._received.append(arrived)
        actor, report, columns = arrived
        self._rollout_bytes = max(self._rollout_bytes, nest.nbytes(columns))
        actor.stats.collecting += report.seconds
        actor.stats.waiting += report.waited
        actor.restarts_in_a_row = 0
        traj_ids = columns["traj_ids"]
        last = report.frames // traj_ids.shape[1] - 1
        goes_on = ~(columns["terminated"][last] | columns["truncated"][last])
        actor.in_progress = traj_ids[last][goes_on].tolist()
        actor.next_index = int(traj_ids.max()) // (traj_ids.shape[1] * len(self._pool.actors)) + 1
        batch.add(slot, columns)
        if report.leaves:
            self._pool.move(actor)

    def _finish(self, batch: Assembler) -> Rollout:
        broken, self._pool.broken = self._pool.broken, []
        finished = batch.finish(broken)
        taken, self._received = self._received, []
        for arrived in taken:
            arrived.actor.stats.delivered += arrived.frames
        return finished

    def discard(self) -> None:
        taken, self._received = self._received, []
        for arrived in taken:
            arrived.actor.stats.discarded += arrived.frames


class Assembler:
    """Batch under construction: rollouts side by side, in new arrays."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._steps: Columns = {}
        self.slots: dict[int, Columns] = {}
        """Fields without a time dimension, by slot (position of the rollout in the batch)."""

    def add(self, slot: int, columns: Columns) -> None:
        """Copy a rollout into its slot. Raises `ValueError` if its arrays do not match earlier rollouts."""
        env_num = len(columns["env_ids"])
        own = slice(slot * env_num, (slot + 1) * env_num)

        def zeros(rows: np.ndarray) -> np.ndarray:
            return blank((len(rows), self._count * env_num, *rows.shape[2:]), rows.dtype)

        steps = {name: columns[name] for name in STEPS}
        if not self._steps:
            self._steps = nest.map(zeros, steps)
        # An actor adds a column when an info first has the entry. Rollouts without the column get zeros.
        extras = self._steps["extras"]
        extras |= {name: nest.map(zeros, rows) for name, rows in steps["extras"].items() if name not in extras}
        for name, rows in steps["extras"].items():  # actors may have seen different dtypes
            if isinstance(rows, np.ndarray) and rows.dtype != extras[name].dtype:
                dtype = np.promote_types(rows.dtype, extras[name].dtype)
                extras[name], steps["extras"][name] = extras[name].astype(dtype), rows.astype(dtype)
        targets = {**self._steps, "extras": {name: extras[name] for name in steps["extras"]}}
        nest.merge(lambda pair: _copy(pair[0], own, pair[1]), [targets, steps])
        # Copied, because a view would keep the whole rollout in the store.
        self.slots[slot] = nest.map(np.array, {name: rows for name, rows in columns.items() if name not in STEPS})

    def finish(self, broken: Sequence[int] = ()) -> Rollout:
        """Return the batch of the filled slots. `broken`: ids of episodes that killed actors did not finish."""
        parts = [self.slots[slot] for slot in sorted(self.slots)]
        env_num = len(parts[0]["env_ids"])
        for place, part in enumerate(parts):
            part["final_env"] += place * env_num
        joined: dict[str, Any] = nest.merge(np.concatenate, parts)
        joined["broken_ids"] = np.union1d(joined["broken_ids"], np.array(broken, np.int64))
        order = np.lexsort((joined["final_env"], joined["final_time"]))
        for name in ("final_env", "final_time", "final_obs"):
            joined[name] = nest.take(joined[name], order)
        steps = self._steps
        if len(parts) < self._count:
            columns = np.concatenate([slot * env_num + np.arange(env_num) for slot in sorted(self.slots)])
            steps = nest.map(lambda rows: rows[:, columns], steps)
        return Rollout(**nest.map(lambda rows: rows.swapaxes(0, 1), steps), **joined)


def _copy(own: np.ndarray, envs: slice, rows: np.ndarray) -> None:
    if (own.dtype, own.shape[0], own.shape[2:]) != (rows.dtype, rows.shape[0], rows.shape[2:]):
        raise ValueError(
            f"rollouts of actors do not fit together: arrays of {own.dtype} {(own.shape[0], *own.shape[2:])} and of "
            f"{rows.dtype} {(rows.shape[0], *rows.shape[2:])}, (steps, ...); make_venv must make envs with the same "
            "spaces and rewards in every actor"
        )
    own[:, envs] = rows
