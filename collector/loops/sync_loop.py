"""The loop in which all envs step together.

A round calls the policy for the actions of the envs, and sends them. An env whose episode ends is reset in one of three
ways, of which each round uses the first that it can::

    by its worker,       round    1    2    3    4    5    6
    in the same round    env 0    s0   s1#  s2   s3   s4   s5    s = step, with the row it is recorded in
                         env 1    s0   s1   s2   s3#  s4   s5    # = the episode ends

    in the round         env 0    s0   s1#  R    s2   s3   s4    R = reset, where episodes have seeds of their own, and
    after it             env 1    s0   s1   s2   s3#  R    s4#   the first way is not open

    in a round of        env 0    s0   s1        s2   s3   s4#   before the first round of a batch, and without seeds
    its own              env 1    s0   s1#  R    s2   s3   s4    also where the first way is not open

The first way is not open for backends that cannot reset by themselves, for episodes that a limit or a failure ended, in
the last round of a batch, because it is not known yet whether an env steps again, and where no further episode is known
for each env. Without seeds, envs are always at the same row, and what the policy gets does not depend on where batches
end; only those that have all their episodes (`collect(n_episode=...)`) stay behind. With seeds, an env that has all its
rows waits for the others, one for which there is no further episode is left out, and the policy is called with a row
for each env in every round (one that gets tensors: filled up to a multiple of four), so that what it computes for one
does not depend on which others step. Rows of envs that do not step hold their last observation, and their actions are
discarded.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.batch.step_extras import StepBatch
from collector.loops.collection_loop import BatchRequest, CollectionLoop
from collector.policy.action_trees import as_vector_envs_take_it
from collector.policy.policy_call import Policy
from collector.policy.runner import Outputs
from vecenv import nest


class SyncLoop(CollectionLoop):
    """Collects a `Rollout`: rows of all envs."""

    def _prepare(self, policy: Policy | None) -> None:
        super()._prepare(policy)
        self._row_ids = np.arange(self._runner.rows)
        """The ids of the rows with which the policy is called where there are seeds: first the envs."""
        self._kept_buffer: RolloutBuffer | None = None

    def _round_up(self, frames: int) -> int:
        return -(-frames // self._env_num) * self._env_num

    def _finish_steps(self, discard: bool) -> None:
        """Nothing is in flight between batches, and every step is in a batch."""

    def _discard_steps(self) -> None:
        """The reset of all envs before the next step discards what is in flight."""

    def _gather(self, request: BatchRequest) -> Rollout:
        if self.all_played:
            raise RuntimeError("all of episode_seeds have been played: make a new collector for others")
        episodes, buffer = self._episodes, self._new_buffer(request)
        episodes.begin_batch()
        self._buffer, self._request, self._rows = buffer, request, np.zeros(self._env_num, np.int64)
        self._record()
        self._obs = buffer.read("obs", self._rows * self._env_num + self._all_ids)
        version = -1 if request.random else self._weights.version
        batch = buffer.finish(self._rows, episodes.columns, version)
        if request.random:
            self._add_zeros(batch)
        return batch

    def _record(self) -> None:
        """Record rounds until all envs have their rows, or their episodes, or the collection is interrupted."""
        n, seeded, episodes, buffer = self._env_num, self._noise is not None, self._episodes, self._buffer
        if self._obs is not None:
            buffer.write("obs", slice(0, n), self._obs)
        ids, time, is_even, stopped = self._unfinished(), 0, True, False
        obs: Any = None  # what the policy gets, where the last round returned it
        some_ended = True
        while len(ids) and not stopped:
            resets = episodes.over[ids] if some_ended else None
            count = 0 if resets is None else np.count_nonzero(resets)
            mixed = bool(count)
            if resets is not None and count and (count == len(ids) or not seeded or (self._autoreset and not time)):
                obs = self._reset(ids, resets, obs)
                mixed = False
            if obs is None:
                rows = self._all_ids if seeded else ids
                obs = buffer.read("obs", self._rows[rows] * n + rows)
            outputs = self._act(obs, ids, first=not time)
            is_even = is_even and not mixed
            where = slice(time * n, time * n + n) if is_even and len(ids) == n else self._rows[ids] * n + ids
            buffer.write_outputs(where, outputs)  # those of envs that are reset are written over
            autoreset = self._may_autoreset(ids, time + 1)
            step = self._exchange(ids, outputs["action"], resets if mixed else None, autoreset)
            obs = step[0]
            some_ended = self._note_round(ids, where, step, resets if mixed else None, autoreset)
            time += 1
            if seeded and len(ids) < n:
                obs = None
            if time >= buffer.steps or (some_ended and (seeded or self._request.quota is not None)):
                before, ids = ids, self._unfinished()
                obs = obs if seeded or len(ids) == len(before) else None
            self._clock.lap("storage")
            stopped = self._interruptor.collection_stopped()

    def _unfinished(self) -> np.ndarray:
        """The envs that go on: they lack rows, have an episode, and may end one more."""
        going = (self._rows < self._buffer.steps) & (self._episodes.ids >= 0)
        if self._request.quota is not None:
            going &= self._request.quota > 0
        return going.nonzero()[0]

    def _reset(self, ids: np.ndarray, resets: np.ndarray, obs: Any) -> Any:
        """Run a round of resets; returns the observations that the policy gets, where they are known."""
        n, buffer, begun = self._env_num, self._buffer, ids[resets]
        first, info = self.env.reset(None if len(begun) == n else begun, **self._seeds_of(begun))
        self._clock.lap("env")
        if not buffer.has("obs"):  # the policy may be shown rows of envs that have no episode
            buffer.write("obs", slice(0, n), nest.take(first, np.zeros(n, np.int64)))
        buffer.write("obs", self._rows[begun] * n + begun, first)
        self._begin(begun)
        if self._noise is not None:
            self._noise.begin(begun, info)
        if len(begun) == (n if self._noise is not None else len(ids)):
            return first
        if self._noise is not None or obs is None:
            return None
        nest.put(obs, resets, first)
        return obs

    def _seeds_of(self, env_ids: np.ndarray) -> dict[str, Any]:
        """The arguments with which these envs are reset."""
        return {} if self._noise is None else {"seed": self._episodes.seeds[env_ids].tolist()}

    def _act(self, obs: Any, ids: np.ndarray, first: bool) -> Outputs:
        """The policy's outputs for these envs."""
        if self._noise is None:
            outputs = self._runner(obs, ids, self._request.random)
        else:
            call = partial(self._runner, self._filled_up(obs), self._row_ids, self._request.random)
            outputs = self._noise.watch(call) if first else call()
            outputs = outputs if len(ids) == len(self._row_ids) else nest.take(outputs, ids)
        self._clock.lap("act")
        return outputs

    def _filled_up(self, obs: Any) -> Any:
        """The observations of all envs with as many rows as the policy gets; those behind are that of the last env."""
        if len(self._row_ids) == self._env_num:
            return obs
        return nest.take(obs, np.minimum(self._row_ids, self._env_num - 1))

    def _may_autoreset(self, ids: np.ndarray, following: int) -> bool:
        """Return whether all that may end in a round is to go on, so that it is reset in it: with the seed of its next
        episode, where episodes have seeds.
        """
        if not self._autoreset or following >= self._buffer.steps:
            return False
        if self._noise is not None:
            return bool(self._episodes.next_seeds[ids].min() >= 0)
        return self._request.quota is None or bool(self._request.quota[ids].min() > 1)

    def _exchange(self, ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: bool) -> tuple[Any, ...]:
        """Send a round and take its results; envs in the mask `resets` are reset instead."""
        asked, action = None if len(ids) == self._env_num else ids, as_vector_envs_take_it(action)
        if resets is not None:
            mask = resets if asked is None else ids[resets]
            self.env.send(action, asked, reset=mask, **self._seeds_of(ids[resets]))
            step: tuple[Any, ...] = self.env.recv()
        elif autoreset:
            seeds = True if self._noise is None else self._episodes.next_seeds[ids]
            step = self.env.step(action, asked, autoreset=seeds)
        else:
            step = self.env.step(action, asked)
        self._clock.lap("env")
        return step

    def _note_round(
        self, ids: np.ndarray, where: Where, step: tuple[Any, ...], resets: np.ndarray | None, autoreset: bool
    ) -> bool:
        """Record a round in the rows `where`; returns whether an episode ended in it."""
        n, buffer, (obs, reward, terminated, truncated, info) = self._env_num, self._buffer, step
        reward, terminated, truncated, by_env = self._count_steps(ids, reward, terminated, truncated, resets)
        buffer.write_step(where, reward, terminated, truncated)
        ended = (by_env | truncated if self._limit else by_env).nonzero()[0]
        last_obs, begun = _last_obs(obs, ended, info, by_env if autoreset else None) if len(ended) else (None, [])
        if self._request.on_step is not None:
            before, action = buffer.read("obs", where), buffer.read("action", where)
            shown = StepBatch(ids, before, action, reward, terminated, truncated, obs, info)
            if begun:
                shown = shown._replace(next_obs=_with_rows(obs, ended, last_obs))
            self._show(self._request.on_step, where, shown, resets)
        if isinstance(where, slice):
            self._rows.fill(where.stop // n)
            buffer.write("obs", slice(where.start + n, where.stop + n), obs)
        else:
            self._rows[ids] += 1 if resets is None else ~resets
            buffer.write("obs", self._rows[ids] * n + ids, obs)
        if resets is not None:
            self._begin(ids[resets])
        if self._noise is not None:
            self._noise.note_masks(ids, info)
            if resets is not None:
                self._noise.begin(ids[resets], info[resets])
        if len(ended):
            failed = self._end_episodes(ids, ended, info, self._request.quota)
            at = where.start + ended if isinstance(where, slice) else where[ended]
            if failed.any():
                buffer.break_episodes(at[failed])
                at, last_obs = at[~failed], nest.take(last_obs, ~failed)
            buffer.end_episodes(at, last_obs)
        if begun:
            self._begin(ids[begun])
            if self._noise is not None:
                self._noise.begin(ids[begun], info[begun])
        return len(ended) > 0

    def _show(self, hook: Any, where: Where, shown: StepBatch, resets: np.ndarray | None) -> None:
        """Call the step hook with the envs that stepped, and record what it returns."""
        if resets is not None:
            assert isinstance(where, np.ndarray)
            where, shown = where[~resets], StepBatch._make(nest.take(tuple(shown), ~resets))
        self._buffer.write_extras(where, hook.timed(shown, self._clock.lap))

    def _add_zeros(self, batch: Rollout) -> None:
        """Add what the policy would have returned with the action, as zeros, to a batch of random actions."""
        obs, ids = self._obs, self._all_ids
        if self._noise is not None:
            obs, ids = self._filled_up(obs), self._row_ids
        for name, (shape, dtype) in self._runner.learn_layout(obs, ids).items():
            if name != "action":
                batch.extras[name] = np.zeros((*batch.shape, *shape), dtype)

    def _new_buffer(self, request: BatchRequest) -> RolloutBuffer:
        steps = request.frames // self._env_num
        if not request.reuse:
            return RolloutBuffer(self._env_num, steps)
        if self._kept_buffer is None:
            self._kept_buffer = RolloutBuffer(self._env_num, steps)
        self._kept_buffer.rewind()
        return self._kept_buffer


def _last_obs(obs: Any, ended: np.ndarray, info: Any, by_env: np.ndarray | None) -> tuple[Any, list[int]]:
    """The last observations of the episodes that ended in these rows of a round, and which rows were reset in it: only
    those in `by_env` can have been. (An env may itself return a key `final_obs`.)
    """
    last, begun = nest.take(obs, ended), []
    for j, row in enumerate(ended.tolist()):
        if by_env is not None and by_env[row] and "final_obs" in info[row]:
            nest.put(last, j, info[row]["final_obs"])
            begun.append(row)
    return last, begun


def _with_rows(obs: Any, rows: np.ndarray, values: Any) -> Any:
    """A copy of `obs` with `values` in these rows."""
    copy = nest.map(np.copy, obs)
    nest.put(copy, rows, values)
    return copy
