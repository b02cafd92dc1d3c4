"""From rollouts of actors to batches: which actors are asked for how many, and for which a batch waits.

With `sync` a batch has a rollout of each actor, and nothing is in flight between batches but those that came too late.
Without, a batch is the rollout that was finished first, and actors always have another one to collect.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collector.batch.rollout import Rollout
from collector.cluster.actor_calls import ActorCalls
from collector.cluster.actor_pool import ActorPool, Arrived
from collector.cluster.packed_rollout import BatchAssembler
from collector.cluster.published_weights import PublishedWeights


class RolloutBatches:
    """Asks the actors of a pool for rollouts of `frames` steps, and makes batches of what they return.

    depth: rollouts that an actor may have in flight. max_bytes: those of all actors together; one is always asked for.
    straggler_timeout: seconds that a batch of all actors waits once the first rollout has come; None: for all.
    """

    def __init__(
        self,
        pool: ActorPool,
        weights: PublishedWeights,
        frames: int,
        *,
        depth: int,
        max_bytes: float,
        straggler_timeout: float | None,
    ) -> None:
        self._pool, self._weights, self._frames = pool, weights, frames
        self._depth, self._max_bytes, self._straggler_timeout = depth, max_bytes, straggler_timeout
        self._rollout_bytes = 0
        """Of the largest rollout so far."""

    def of_all(self, random_frames: int) -> Rollout:
        """A rollout of each actor, without those that are dropped meanwhile or come too late. Actions are random in all
        that are asked for, where fewer than so many steps are in flight before.
        """
        assembler = BatchAssembler(len(self._pool.actors))
        all_or_none = math.inf if self._pool.frames_in_flight < random_frames else 0
        until: float | None = None
        while True:
            missing = [actor for actor in self._pool.alive if actor.index not in assembler]
            if not missing or (until is not None and time.monotonic() >= until):
                return self._finish(assembler)
            self._ask(missing, all_or_none)
            arrived = self._pool.next_rollout(None if until is None else max(0.0, until - time.monotonic()))
            if arrived is not None:
                self._add(assembler, arrived.actor.index, arrived)
                if until is None and self._straggler_timeout is not None:
                    until = time.monotonic() + self._straggler_timeout

    def first(self, random_frames: int) -> Rollout:
        """The rollout that was finished first. Actions are random in each that is asked for while fewer than so many
        steps, of all actors together, are in flight.
        """
        assembler = BatchAssembler(1)
        while not assembler:
            self._ask(self._pool.alive, random_frames)
            arrived = self._pool.next_rollout()
            if arrived is not None:
                self._add(assembler, 0, arrived)
        # Before the batch is learned from: its actor collects meanwhile.
        self._ask(self._pool.alive, random_frames - self._frames)
        return self._finish(assembler)

    def _ask(self, actors: Sequence[ActorCalls], random_frames: float) -> None:
        """Ask these actors for as many rollouts as they may have in flight, those with the fewest first."""
        stamp, weights = self._weights.reference()
        _, version = stamp  # of these weights: an update may come meanwhile
        most = self._depth if self._rollout_bytes else 1  # until it is known what a rollout takes
        for depth in range(1, most + 1):
            for actor in actors:
                in_flight = self._pool.rollouts_in_flight
                if in_flight and (in_flight + 1) * self._rollout_bytes > self._max_bytes:
                    return
                if actor.rollouts < depth:
                    new = None if actor.stamp == stamp else weights
                    actor.stamp = stamp
                    is_random = self._pool.frames_in_flight < random_frames
                    self._pool.ask_rollout(actor, self._frames, version, new, is_random)

    def _add(self, assembler: BatchAssembler, slot: int, arrived: Arrived) -> None:
        self._rollout_bytes = max(self._rollout_bytes, arrived.report.nbytes)
        assembler.add(slot, arrived.columns)

    def _finish(self, assembler: BatchAssembler) -> Rollout:
        batch, broken = assembler.finish(), self._pool.take_broken()
        return replace(batch, broken_ids=np.union1d(batch.broken_ids, broken)) if len(broken) else batch
