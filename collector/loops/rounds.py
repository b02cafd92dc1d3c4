"""The rounds of a batch in which all envs step together.

A round calls the policy for the actions of the envs, and sends them. An env whose episode ends is reset by its worker
in the same round, but for the last round of a batch: whether it steps again is not known yet. Where that cannot be, it
is reset in a separate round before all go on together::

    round    1    2    3    4    5    6
    env 0    s0   s1        s2   s3   s4#   s = step, with the row it is recorded in; R = reset
    env 1    s0   s1#  R    s2   s3   s4    # = the episode ends (env 0: reset at the start of the next batch)

That is so for vector envs whose backend cannot reset by itself, for episodes that `max_frames_per_traj` or a failure
ended, and for the last episodes that `collect(n_episode=...)` needs. So envs are always at the same row, and what the
policy gets does not depend on where batches end. Only those that have all their episodes stay behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector.batch.request import BatchRequest
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.batch.step_extras import StepBatch
from collector.episodes.progress import Episodes
from collector.policy.action_trees import as_vector_envs_take_it
from collector.policy.runner import PolicyRunner
from collector.timing import Clock
from vecenv import nest
from vecenv.wrappers import resets_in_step


class Rounds:
    """The rounds of one batch."""

    def __init__(
        self,
        env: Any,
        runner: PolicyRunner,
        episodes: Episodes,
        limit: int,
        buffer: RolloutBuffer,
        request: BatchRequest,
        fit_rewards: Callable[[np.ndarray], np.ndarray],
        is_stopped: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._env, self._env_num = env, env.env_num
        self._autoreset = resets_in_step(env)
        self._runner, self._random = runner, request.random
        self._episodes, self._over, self._taken, self._limit = episodes, episodes.over, episodes.taken.copy(), limit
        self._buffer, self._quota, self._on_step = buffer, request.quota, request.on_step
        self._fit_rewards, self._is_stopped, self._lap = fit_rewards, is_stopped, clock.lap

    def run(self, time: int, ids: np.ndarray, obs: Any) -> tuple[int, bool]:
        """Rounds of the envs `ids`, from row `time` on, until one may have all its rows, or all its episodes.

        `obs` are their observations; returns the next row, and whether the collection is interrupted.
        """
        n, buffer = self._env_num, self._buffer
        where: Where = slice(time * n, time * n + n) if len(ids) == n else time * n + ids
        done = self._over[ids]
        over = done.nonzero()[0]  # the rows of a round whose envs are to be reset
        complete = stopped = False
        while time < buffer.steps and not (complete or stopped):
            if len(over):
                obs = self._reset(ids, over, obs, time)
            outputs = self._runner(obs, ids, self._random)
            self._lap("act")
            buffer.write_outputs(where, outputs)
            autoreset = self._may_autoreset(ids, time + 1 < buffer.steps)
            obs, reward, terminated, truncated, info = self._step(outputs["action"], ids, autoreset)
            reward, done = self._fit_rewards(reward), terminated | truncated
            ended = done if autoreset else None  # by itself: an episode that is cut is not reset in this round
            if self._limit:
                truncated = self._cut_long(ids, truncated)
                done = done | truncated
            buffer.write_step(where, reward, terminated, truncated)
            over = done.nonzero()[0]
            last_obs, begun = _last_obs(obs, over, info, ended) if len(over) else (None, [])
            if self._on_step is not None:
                before, action = buffer.read("obs", where), buffer.read("action", where)
                after = _with_rows(obs, over, last_obs) if begun else obs
                step = StepBatch(ids, before, action, reward, terminated, truncated, after, info)
                buffer.write_extras(where, self._on_step.timed(step, self._lap))
            where = slice(where.start + n, where.stop + n) if isinstance(where, slice) else where + n
            buffer.write("obs", where, obs)
            time += 1
            if len(over):
                complete = self._end_episodes(ids, over, (time - 1) * n + ids, last_obs, info)
            if begun:
                self._runner.begin(ids[begun])
                done[begun] = False
                over = done.nonzero()[0]
            self._lap("storage")
            stopped = self._is_stopped()
        self._over[ids] = done
        return time, stopped

    def _reset(self, ids: np.ndarray, over: np.ndarray, obs: Any, time: int) -> Any:
        """Run a round of resets of the rows `over`; returns the observations of all."""
        env_ids = ids[over]
        self._runner.begin(env_ids)  # the policy's state begins too where random actions take its place
        first, _ = self._env.reset(None if len(over) == self._env_num else env_ids)
        self._lap("env")
        self._buffer.write("obs", time * self._env_num + env_ids, first)
        if len(over) == len(ids):
            return first
        nest.put(obs, over, first)
        return obs

    def _may_autoreset(self, ids: np.ndarray, goes_on: bool) -> bool:
        """Whether all that may end in a round is to go on, so that it is reset in it."""
        return self._autoreset and goes_on and (self._quota is None or bool(self._quota[ids].min() > 1))

    def _step(self, action: Any, ids: np.ndarray, autoreset: bool) -> tuple[Any, ...]:
        env_ids, action = None if len(ids) == self._env_num else ids, as_vector_envs_take_it(action)
        if autoreset:
            step: tuple[Any, ...] = self._env.step(action, env_ids, autoreset=True)
        else:
            step = self._env.step(action, env_ids)
        self._lap("env")
        return step

    def _cut_long(self, ids: np.ndarray, truncated: np.ndarray) -> np.ndarray:
        """Truncate episodes that have as many steps as they may."""
        self._taken[ids] += 1
        return truncated | (self._taken[ids] >= self._limit)

    def _end_episodes(self, ids: np.ndarray, over: np.ndarray, rows: np.ndarray, last_obs: Any, info: Any) -> bool:
        """Note the episodes that ended in this round; returns whether an env now has all that it is to have."""
        self._taken[ids[over]] = 0
        if failed := self._episodes.note_failures(ids, over, info):
            self._buffer.break_episodes(rows[failed])
            whole = ~np.isin(over, failed)
            over, last_obs = over[whole], nest.take(last_obs, whole)
        self._buffer.end_episodes(rows[over], last_obs)
        if self._quota is None:
            return False
        self._quota[ids[over]] -= 1
        return bool((self._quota[ids[over]] == 0).any())


def _last_obs(obs: Any, over: np.ndarray, info: Any, ended: np.ndarray | None) -> tuple[Any, list[int]]:
    """The last observations of the episodes that are over in these rows of a round, and which of them were reset in it:
    only those in `ended` can have been. (An env may itself return a key `final_obs`.)
    """
    last, begun = nest.take(obs, over), []
    for j, row in enumerate(over.tolist()):
        if ended is not None and ended[row] and "final_obs" in info[row]:
            nest.put(last, j, info[row]["final_obs"])
            begun.append(row)
    return last, begun


def _with_rows(obs: Any, rows: np.ndarray, values: Any) -> Any:
    """A copy of `obs` with `values` in these rows."""
    copy = nest.map(np.copy, obs)
    nest.put(copy, rows, values)
    return copy
