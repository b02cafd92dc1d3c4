"""`EpisodeLoop`: collects batches in which envs may stand still: each has its share of episodes, or plays seeds.

A round calls the policy for the envs that step, and sends their actions. An env whose episode ends is reset in the
first of these ways that is open::

    by its worker,       round    1    2    3    4    5    6
    in the same round    env 0    s0   s1#  s2   s3   s4   s5    s = step, with the row it is recorded in
                         env 1    s0   s1   s2   s3#  s4   s5    # = the episode ends

    in the round         env 0    s0   s1#  R    s2   s3   s4    R = reset; only if episodes have seeds of their own
    after it             env 1    s0   s1   s2   s3#  R    s4#

    in a round of        env 0    s0   s1        s2   s3   s4#   before the first round of a batch, and without seeds
    its own              env 1    s0   s1#  R    s2   s3   s4

The first way is closed in the cases that `SyncLoop` names, and if no further episode is known for each env. Without
seeds, envs that have all their episodes stay behind, and the policy gets the rows of the others. With seeds, an env
that has all its rows waits for the others. An env for which there is no further episode is left out. The policy gets a
row for each env in every round (one on tensors: filled up to a multiple of four), so that what it computes for one does
not depend on which others step. Rows of envs that do not step hold their last observation, and their
actions are discarded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.collectors.batch_request import BatchRequest, LoopParts
from collector.collectors.round_recorder import RoundRecorder, buffer_of
from vecenv import nest
from vecenv.extending import resets_in_step


class EpisodeLoop:
    """Collects `Rollout`s of whole episodes; arguments as for `SyncLoop`."""

    def __init__(self, parts: LoopParts) -> None:
        self._env, self._policy, self._episodes, self._clock, self._stops = parts
        self._all_ids, self._resets_in_step = np.arange(parts.env.env_num), resets_in_step(parts.env)
        self._kept: RolloutBuffer | None = None

    def collect(self, request: BatchRequest) -> Rollout:
        """Collect one batch."""
        n, episodes, clock, seeded = len(self._all_ids), self._episodes, self._clock, self._episodes.is_seeded
        buffer, rows = buffer_of(request, n, self._kept), np.zeros(n, np.int64)
        recorder = RoundRecorder(buffer, episodes, self._policy, request, clock)
        self._kept = buffer if request.reuse else self._kept
        episodes.begin_batch()
        if episodes.obs is not None:
            buffer.write("obs", slice(0, n), episodes.obs)
        ids, time, is_even, some_ended, stopped = self._going(rows, buffer, request), 0, True, True, False
        obs: Any = None  # what the policy gets, where the last round returned it
        while len(ids) and not stopped:
            resets = None
            if some_ended and np.count_nonzero(over := episodes.over[ids]):
                if seeded and not over.all() and (time or not self._resets_in_step):
                    resets, is_even = over, False
                else:
                    obs = self._reset(recorder, buffer, rows, ids, over, obs)
            if obs is None:
                shown = self._all_ids if seeded else ids
                obs = buffer.read("obs", rows[shown] * n + shown)
            outputs = request.policy.actions(obs, ids, episodes.infos)
            where: Where = slice(time * n, time * n + n) if is_even and len(ids) == n else rows[ids] * n + ids
            buffer.write_outputs(where, outputs)  # those of envs that are reset are written over
            time += 1
            autoreset = self._resets_in_step and time < buffer.steps and self._go_on(ids, request.quota)
            step = self._exchange(ids, outputs["action"], resets, autoreset)
            clock.lap("env")
            rows[ids] += 1 if resets is None else ~resets
            after = slice(time * n, time * n + n) if isinstance(where, slice) else rows[ids] * n + ids
            some_ended = recorder.record(ids, where, after, step, resets, autoreset)
            obs = None if seeded and len(ids) < n else step[0]
            if time >= buffer.steps or some_ended:
                before, ids = len(ids), self._going(rows, buffer, request)
                obs = obs if seeded or len(ids) == before else None
            clock.lap("storage")
            stopped = self._stops()
        episodes.obs = buffer.read("obs", rows * n + self._all_ids)
        return buffer.finish(rows, episodes.columns, request.version)

    def _going(self, rows: np.ndarray, buffer: RolloutBuffer, request: BatchRequest) -> np.ndarray:
        """Return the envs that go on: they lack rows, have an episode, and may end one more."""
        going = (rows < buffer.steps) & (self._episodes.ids >= 0)
        if request.quota is not None:
            going &= request.quota > 0
        return going.nonzero()[0]

    def _go_on(self, ids: np.ndarray, quota: np.ndarray | None) -> bool:
        """Return whether each of these envs begins another episode, whichever end in a round: its seed is known, or its
        quota has one more.
        """
        if self._episodes.is_seeded:
            return bool(self._episodes.next_seeds[ids].min() >= 0)
        return quota is None or bool(quota[ids].min() > 1)

    def _reset(
        self, recorder: RoundRecorder, buffer: RolloutBuffer, rows: np.ndarray, ids: np.ndarray, over: Any, obs: Any
    ) -> Any:
        """Run a round of resets; return the observations that the policy gets, if they are known."""
        n, begun, seeded = len(self._all_ids), ids[over], self._episodes.is_seeded
        first, info = self._env.reset(None if len(begun) == n else begun, **self._seeds_of(begun))
        self._clock.lap("env")
        if not buffer.has("obs"):  # the policy may be shown rows of envs that have no episode
            buffer.write("obs", slice(0, n), nest.take(first, np.zeros(n, np.int64)))
        buffer.write("obs", rows[begun] * n + begun, first)
        recorder.begin(begun, info)
        if len(begun) == (n if seeded else len(ids)):
            return first
        if seeded or obs is None:
            return None
        nest.put(obs, over, first)
        return obs

    def _seeds_of(self, env_ids: np.ndarray) -> dict[str, Any]:
        """Return the arguments with which these envs are reset."""
        return {"seed": self._episodes.seeds[env_ids].tolist()} if self._episodes.is_seeded else {}

    def _exchange(self, ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: bool) -> tuple[Any, ...]:
        """Send a round and receive its results; envs in the mask `resets` are reset instead."""
        asked = None if len(ids) == len(self._all_ids) else ids
        if resets is not None:
            mask = resets if asked is None else ids[resets]
            self._env.send(action, asked, reset=mask, **self._seeds_of(ids[resets]))
            return self._env.recv()
        if autoreset:
            seeds = self._episodes.next_seeds[ids] if self._episodes.is_seeded else True
            return self._env.step(action, asked, autoreset=seeds)
        return self._env.step(action, asked)
