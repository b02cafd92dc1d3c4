"""The rounds of a batch of episodes that have seeds of their own.

Which seed an env is reset with is known when its episode is over, so the reset travels with the next round, in which
the others step::

    round    1    2    3    4    5    6
    env 0    s0   s1#  R    s2   s3   s4    s = step, with the row it is recorded in; R = reset with the seed
    env 1    s0   s1   s2   s3#  R    s4#   # = the episode ends

No round is for resets alone, but where all envs that go on need one. An env that has all its rows waits for the others,
and one for which there is no further episode is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector.batch.request import BatchRequest
from collector.batch.rollout_buffer import RolloutBuffer
from collector.batch.step_extras import StepBatch
from collector.episodes.seeded import SeededEpisodes
from collector.policy.action_trees import as_vector_envs_take_it
from collector.policy.keyed_noise import KeyedNoise
from collector.policy.runner import Outputs, PolicyRunner
from collector.timing import Clock
from vecenv import nest


class SeededRounds:
    """Records batches; it is made once for a collector, whose vector env, policy and episodes it drives.

    The policy is called with a row for each env in every round (one that gets tensors: filled up to a multiple of
    four), so that what it computes for one does not depend on which others step. Rows of envs that do not step hold
    their last observation, and their actions are discarded.
    """

    def __init__(
        self,
        env: Any,
        runner: PolicyRunner,
        episodes: SeededEpisodes,
        noise: KeyedNoise,
        limit: int,
        fit_rewards: Callable[[np.ndarray], np.ndarray],
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._env, self._env_num = env, env.env_num
        self.row_ids = np.arange(runner.rows)
        """The ids of the rows with which the policy is called: first the envs, then rows that fill up."""
        self._runner, self._episodes, self._noise, self._limit = runner, episodes, noise, limit
        self._fit_rewards, self._is_stopped, self._lap = fit_rewards, is_stopped, clock.lap
        noise.numbers[: self._env_num] = episodes.numbers
        episodes.numbers = noise.numbers[: self._env_num]  # the same memory
        self._steps = noise.steps[: self._env_num]

    def record(self, buffer: RolloutBuffer, request: BatchRequest, obs: Any) -> np.ndarray:
        """Record a batch; returns how many rows each env has: int64 `(N,)`.

        `obs` are the observations before the first steps; None before the first batch.
        """
        episodes, n = self._episodes, self._env_num
        self._steps[:] = episodes.taken  # of which the batch needs those with which it begins
        self._buffer, self._request = buffer, request
        self._rows = np.zeros(n, np.int64)
        self._latest: Any = None
        """The observations of all envs, where one round returned them."""
        if obs is not None:
            buffer.write("obs", slice(0, n), obs)
        stopped = is_checked = False
        while not stopped:
            ids = ((self._rows < buffer.steps) & (episodes.numbers >= 0)).nonzero()[0]
            if not len(ids):
                break
            resets = episodes.over[ids]
            if resets.all():
                first, info = self._env.reset(self._asked(ids), seed=episodes.seeds[ids].tolist())
                self._lap("env")
                self._begin(ids, first, info)
                continue
            outputs = self._act(is_checked)
            is_checked = True
            self._exchange(ids, resets, outputs)
            self._lap("storage")
            stopped = self._is_stopped()
        return self._rows

    def _act(self, is_checked: bool) -> Outputs:
        """The policy's outputs for all envs."""
        obs, random = self._latest, self._request.random
        if obs is None:
            obs = self._buffer.read("obs", self._rows * self._env_num + np.arange(self._env_num))
        obs = self.filled_up(obs)
        if is_checked:
            outputs = self._runner(obs, self.row_ids, random)
        else:
            outputs = self._noise.watch(lambda: self._runner(obs, self.row_ids, random))
        self._lap("act")
        return outputs

    def filled_up(self, obs: Any) -> Any:
        """The observations of all envs with as many rows as the policy gets; those behind are that of the last env."""
        if len(self.row_ids) == self._env_num:
            return obs
        return nest.take(obs, np.minimum(self.row_ids, self._env_num - 1))

    def _exchange(self, ids: np.ndarray, resets: np.ndarray, outputs: Outputs) -> None:
        """One round: of the envs `ids` those in the mask `resets` begin an episode, the others step."""
        asked, self._latest = self._asked(ids), None
        if len(ids) < len(self.row_ids):
            outputs = nest.take(outputs, ids)
        action = as_vector_envs_take_it(outputs["action"])
        if not resets.any():
            where = self._write_outputs(ids, outputs)
            step = self._env.step(action, asked)
            self._lap("env")
            if asked is None:
                self._latest = step[0]  # as it is in the buffer, without a copy
        else:
            begun, stepped = ids[resets], ~resets
            ids = ids[stepped]
            where = self._write_outputs(ids, nest.take(outputs, stepped))
            self._env.send(action, asked, reset=begun, seed=self._episodes.seeds[begun].tolist())
            step = self._env.recv()
            self._lap("env")
            self._begin(begun, nest.take(step[0], resets), step[4][resets])
            step = tuple(nest.take(column, stepped) for column in step)
        self._note_steps(ids, where, *step)

    def _write_outputs(self, ids: np.ndarray, outputs: Outputs) -> np.ndarray:
        """Record what these envs step with; returns the rows of their steps."""
        where = self._rows[ids] * self._env_num + ids
        self._buffer.write_outputs(where, outputs)
        return where

    def _asked(self, ids: np.ndarray) -> np.ndarray | None:
        return None if len(ids) == self._env_num else ids

    def _begin(self, ids: np.ndarray, first: Any, info: np.ndarray) -> None:
        """Note the first observations of episodes that begin."""
        n = self._env_num
        if not self._buffer.has("obs"):  # the policy is shown rows of all envs, also of those that have no episode
            self._buffer.write("obs", slice(0, n), nest.take(first, np.zeros(n, np.int64)))
        self._buffer.write("obs", self._rows[ids] * n + ids, first)
        self._latest = None
        self._steps[ids] = 0
        self._noise.begin(ids, info)
        self._episodes.over[ids] = False
        self._runner.begin(ids)

    def _note_steps(
        self,
        ids: np.ndarray,
        where: np.ndarray,
        obs: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: np.ndarray,
    ) -> None:
        """Record the steps of these envs in the rows `where`, and end episodes."""
        n, buffer, steps = self._env_num, self._buffer, self._steps
        reward = self._fit_rewards(reward)
        steps[ids] += 1
        if self._limit:
            truncated = truncated | (steps[ids] >= self._limit)
        buffer.write_step(where, reward, terminated, truncated)
        if self._request.on_step is not None:
            before, action = buffer.read("obs", where), buffer.read("action", where)
            step = StepBatch(ids, before, action, reward, terminated, truncated, obs, info)
            buffer.write_extras(where, self._request.on_step.timed(step, self._lap))
        buffer.write("obs", where + n, obs)
        self._rows[ids] += 1
        self._noise.note_masks(ids, info)
        over = (terminated | truncated).nonzero()[0]
        if len(over):
            self._end(ids, over, where, obs, info)

    def _end(self, ids: np.ndarray, over: np.ndarray, where: np.ndarray, obs: Any, info: np.ndarray) -> None:
        """Note that the episodes in these rows of a round are over."""
        self._episodes.end(ids[over])
        self._steps[ids[over]] = 0
        if failed := self._episodes.note_failures(ids, over, info):
            self._buffer.break_episodes(where[failed])
            over = over[~np.isin(over, failed)]
        self._buffer.end_episodes(where[over], nest.take(obs, over))
