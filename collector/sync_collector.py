"""`SyncDataCollector`: collect batches while all envs step together.

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

from typing import Any

import numpy as np

from collector.base_collector import BatchRequest
from collector.batch.rollout import Rollout
from collector.batch.rollout_buffer import RolloutBuffer, Where
from collector.batch.step_extras import StepBatch
from collector.collect import Collecting
from collector.env_source import check_synchronous
from collector.policy.action_trees import as_vector_envs_take_it
from vecenv import nest
from vecenv.wrappers import check_send_and_recv


class SyncDataCollector(Collecting):
    """Collects batches of `frames_per_batch` steps from all envs of a vector env, in step.

    docs/guarantees.md ("Batches of a collector") lists the guarantees: what goes from batch to batch, which observation
    is the last one, to whom batches belong, and what a failure leaves.

    Args:
        create_env_fn: a vector env, a callable that makes one (or an env), or a list of ids or of callables.
        policy: a callable, see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all envs together, rounded up to a multiple of them with a warning.
        total_frames: stop after that many steps, a multiple of `frames_per_batch`; None or below zero: never.
        device: the `policy_device` and `storing_device` where they are not given.
        storing_device: batches hold tensors on this device; None: numpy arrays.
        policy_device: the policy gets tensors on this device; None: modules where their parameters are, others arrays.
        env_device: None or "cpu", where envs are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes at that many steps; None or below one: do not.
        init_random_frames: take random actions until so many steps are collected, rounded up to whole batches.
        reset_at_each_iter: reset all envs before each batch.
        postproc: called with each batch of the iterator, after `split_trajs`; its result is the batch.
        split_trajs: the iterator returns `batch.split_trajectories()`.
        exploration_type: what is taken from a distribution that the policy returns.
        exploration_mode: the old name of `exploration_type`.
        return_same_td: return the same object with every batch, in the same memory.
        reset_when_done: only True.
        interruptor: checked after every round; a batch that it ends has the steps collected so far.
        set_truncated: mark the last step of each env in a batch as truncated; its episode goes on.
        compile_policy: run a policy on tensors through `torch.compile`; True, or a dict of its keyword arguments.
        cudagraph_policy: replay a policy on CUDA as a graph by tensordict's `CudaGraphModule`; True, or a dict.
        policy_threads: threads of torch for a policy on the CPU while a batch is collected; None: the caller's number.
        backend: for a list: "dummy" (None means it here), "thread", "subproc", "shmem", or "auto", the faster one.
        episode_seeds: `(number, seed)` of the episodes to be played, each to its end: an iterable, or `EpisodeSeeds`.
        transforms: a transform of `vecenv.transforms`, or a list of several; they work where the policy does.
        info_keys: entries of the envs' infos that are stored with each step, as `batch.extras[key]`.
        env_options: for a list: keywords of the vector env, such as `num_workers`, `step_timeout` and `on_error`.

    Raises `TypeError` and `ValueError` for arguments that it does not take; a vector env that was passed stays open.

    Example::

        with SyncDataCollector(venv, policy, frames_per_batch=2048, total_frames=1_024_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                      # a Rollout: batch.obs, batch.action, batch.next.obs, ...

    >>> import gymnasium as gym
    >>> with SyncDataCollector([lambda: gym.make("CartPole-v1")] * 2, frames_per_batch=10) as collector:
    ...     collector.next()
    Rollout(2 envs, 5 steps, 10 frames, 0 episode ends)
    """

    _user = "SyncDataCollector"
    """The name in errors."""

    def _prepare(self, faster: dict[str, Any]) -> None:
        check_synchronous(self.env, self._user, cuts=self._limit > 0)
        if self._seeded:
            check_send_and_recv(self.env, "a collector with episode_seeds")
        super()._prepare(faster)
        self._kept_buffer: RolloutBuffer | None = None
        self._warn_of_rounding(f"the {self._env_num} envs", f"{self.frames_per_batch // self._env_num} steps of each, ")

    def _like_this(self, env: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(env, policy, **options)

    def _round_up(self, frames: int) -> int:
        return -(-frames // self._env_num) * self._env_num

    # The loop.

    def _gather(self, request: BatchRequest) -> Rollout:
        if self.all_played:
            raise RuntimeError("all of episode_seeds have been played: make a new collector for others")
        n = self._env_num
        buffer = self._kept_buffer if request.reuse else None
        if buffer is None:
            buffer = RolloutBuffer(n, request.frames // n)
        if request.reuse:
            self._kept_buffer = buffer
            buffer.rewind()
        self._episodes.begin_batch()
        self._buffer, self._request, self._rows = buffer, request, np.zeros(n, np.int64)
        self._record()
        self._obs = buffer.read("obs", self._rows * n + self._all_ids)
        return buffer.finish(self._rows, self._episodes.columns, -1 if request.random else self._weights.version)

    def _record(self) -> None:
        """Record rounds until all envs have their rows, or their episodes, or the collection is interrupted."""
        n, seeded, episodes, buffer, rows = self._env_num, self._seeded, self._episodes, self._buffer, self._rows
        runner, random, quota = self._runner, self._request.random, self._request.quota
        always = not seeded and quota is None  # each env begins another episode, whichever end in a round
        lap, stops = self._clock.lap, self._interruptor.collection_stopped
        if self._obs is not None:
            buffer.write("obs", slice(0, n), self._obs)
        ids, time, is_even, some_ended, stopped = self._unfinished(), 0, True, True, False
        obs: Any = None  # what the policy gets, where the last round returned it
        while len(ids) and not stopped:
            resets = None
            if some_ended and np.count_nonzero(over := episodes.over[ids]):
                if seeded and not over.all() and (time or not self._autoreset):
                    resets, is_even = over, False
                else:
                    obs = self._reset(ids, over, obs)
            if obs is None:
                shown = self._all_ids if seeded else ids
                obs = buffer.read("obs", rows[shown] * n + shown)
            outputs = runner(obs, ids, random)
            where = slice(time * n, time * n + n) if is_even and len(ids) == n else rows[ids] * n + ids
            buffer.write_outputs(where, outputs)  # those of envs that are reset are written over
            time += 1
            autoreset = self._autoreset and time < buffer.steps and (always or self._go_on(ids))
            step = self._exchange(ids, outputs["action"], resets, autoreset)
            lap("env")
            some_ended = self._note_round(ids, where, step, resets, autoreset)
            obs = None if seeded and len(ids) < n else step[0]
            if time >= buffer.steps or (some_ended and not always):
                before, ids = len(ids), self._unfinished()
                obs = obs if seeded or len(ids) == before else None
            lap("storage")
            stopped = stops()

    def _unfinished(self) -> np.ndarray:
        """The envs that go on: they lack rows, have an episode, and may end one more."""
        going = (self._rows < self._buffer.steps) & (self._episodes.ids >= 0)
        if self._request.quota is not None:
            going &= self._request.quota > 0
        return going.nonzero()[0]

    def _go_on(self, ids: np.ndarray) -> bool:
        """Return whether each of these envs begins another episode, whichever end in a round: its seed is known, or its
        quota has one more.
        """
        if self._seeded:
            return bool(self._episodes.next_seeds[ids].min() >= 0)
        return bool(self._request.quota[ids].min() > 1)  # type: ignore[index]

    def _reset(self, ids: np.ndarray, resets: np.ndarray, obs: Any) -> Any:
        """Run a round of resets; returns the observations that the policy gets, where they are known."""
        n, buffer, begun = self._env_num, self._buffer, ids[resets]
        first, info = self.env.reset(None if len(begun) == n else begun, **self._seeds_of(begun))
        self._clock.lap("env")
        if not buffer.has("obs"):  # the policy may be shown rows of envs that have no episode
            buffer.write("obs", slice(0, n), nest.take(first, np.zeros(n, np.int64)))
        buffer.write("obs", self._rows[begun] * n + begun, first)
        self._begin(begun, info)
        if len(begun) == (n if self._seeded else len(ids)):
            return first
        if self._seeded or obs is None:
            return None
        nest.put(obs, resets, first)
        return obs

    def _seeds_of(self, env_ids: np.ndarray) -> dict[str, Any]:
        """The arguments with which these envs are reset."""
        return {"seed": self._episodes.seeds[env_ids].tolist()} if self._seeded else {}

    def _exchange(self, ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: bool) -> tuple[Any, ...]:
        """Send a round and take its results; envs in the mask `resets` are reset instead."""
        asked = None if len(ids) == self._env_num else ids
        if isinstance(action, tuple):
            action = as_vector_envs_take_it(action)
        if resets is not None:
            mask = resets if asked is None else ids[resets]
            self.env.send(action, asked, reset=mask, **self._seeds_of(ids[resets]))
            return self.env.recv()
        if autoreset:
            return self.env.step(action, asked, autoreset=self._episodes.next_seeds[ids] if self._seeded else True)
        return self.env.step(action, asked)

    def _note_round(self, ids: np.ndarray, where: Where, step: Any, resets: np.ndarray | None, autoreset: bool) -> bool:
        """Record a round in the rows `where`; returns whether an episode ended in it."""
        n, buffer, (obs, reward, terminated, truncated, info) = self._env_num, self._buffer, step
        reward, terminated, truncated, by_env = self._count_steps(ids, reward, terminated, truncated, resets)
        if isinstance(where, slice):
            self._rows += 1
            after: Where = slice(where.start + n, where.stop + n)
        else:
            self._rows[ids] += 1 if resets is None else ~resets
            after = self._rows[ids] * n + ids
        buffer.write_step(where, after, obs, reward, terminated, truncated)
        ended = (by_env | truncated if self._limit else by_env).nonzero()[0]
        some_ended, last_obs, begun = len(ended) > 0, None, list[int]()
        if some_ended:
            last_obs = nest.take(obs, ended)
            for j, row in enumerate(ended.tolist()) if autoreset else ():
                if by_env[row] and "final_obs" in info[row]:  # also a key of an env's own, where a limit ended it
                    nest.put(last_obs, j, info[row]["final_obs"])
                    begun.append(row)
        if self._request.on_step is not None:
            shown = StepBatch(ids, None, buffer.read("action", where), reward, terminated, truncated, obs, info)
            self._show(where, shown, resets, ended, last_obs)
        self._runner.take_infos(ids, info)
        if resets is not None:
            self._begin(ids[resets], info[resets])
        if some_ended:
            failed = self._end_episodes(ids, ended, info, self._request.quota)
            at = where.start + ended if isinstance(where, slice) else where[ended]
            buffer.end_episodes(at, last_obs, failed)
            if begun:
                self._begin(ids[begun], info[begun])
        return some_ended

    def _show(self, where: Where, shown: StepBatch, resets: Any, ended: np.ndarray, last_obs: Any) -> None:
        """Call the step hook with the envs that stepped, and record what it returns."""
        next_obs = nest.map(np.copy, shown.next_obs)
        if len(ended):
            nest.put(next_obs, ended, last_obs)
        shown = shown._replace(obs=self._buffer.read("obs", where), next_obs=next_obs)
        if resets is not None:
            assert isinstance(where, np.ndarray)
            where, shown = where[~resets], StepBatch._make(nest.take(tuple(shown), ~resets))
        assert self._request.on_step is not None
        self._buffer.write_extras(where, self._request.on_step(shown, self._clock))
