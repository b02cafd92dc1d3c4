"""The loop that turns a vector environment and a policy into batches of data.

A round asks the policy for the actions of the environments that are about to step, and sends them. An environment whose
episode ends is reset by its worker in the same round, but for the last round of a batch: whether it steps again is not
known yet. Where that cannot be, the reset travels with the next steps of the others. So it costs no round trip of its
own; the environment merely falls a row behind them::

    round    1    2    3    4    5    6
    env 0    s0   s1   s2   s3   s4         s = step, with the row it is recorded in; R = reset
    env 1    s0   s1#  R    s2   s3   s4    # = the episode ends
    env 2    s0   s1   s2   s3   s4#        (reset at the start of the next batch)

That is so for vector environments whose backend cannot reset by itself, for episodes that `max_frames_per_traj` or a
failure ended, and where episodes are counted (`collect(n_episode=...)`): no reset is to be wasted there. A batch is
complete when every environment has T rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from collector.actor import Actor, Outputs
from collector.batches import BatchCollector
from collector.bookkeeping import restarted
from collector.collecting import StepBatch, StepHook
from collector.policy import Policy
from collector.rollout import Rollout
from collector.tape import Tape, Where
from vecenv import nest
from vecenv.facades.engine import autoresets
from vecenv.venvs import DummyVectorEnv


class SyncDataCollector(BatchCollector):
    """Collects batches of `frames_per_batch` steps from all environments of a vector environment, in step.

    Guarantees:

    1. Only environments whose episode is over are reset, each once, and only if its next step is needed.
    2. Episodes go on from batch to batch: the same data comes whatever `frames_per_batch` is, as long as the policy's
       answer for one environment does not depend on which others it is asked for (see `collector.policy`).
    3. `batch.next.obs` at the end of an episode is its true last observation.
    4. Batches belong to the caller, unless `return_same_td` is set.
    5. The weights of the policy change between batches only.

    Args:
        create_env_fn: a vector environment; or a callable that makes one (or a single environment); or a list of
            callables that make an environment each. The collector closes it in `shutdown`. One made with `copy=False`
            spares large observations a copy; batches are the same, but a policy may not keep the array it is given.
        policy: see `collector.policy`; None takes random actions.
        frames_per_batch: steps in a batch, all environments together. Where the number of environments does not divide
            it, it is rounded up to the next number that they do, with a warning.
        total_frames: stop after that many steps; -1: never. `ValueError` where `frames_per_batch` does not divide it.
        device: what `policy_device` and `storing_device` are where they are not given.
        storing_device: batches hold tensors on this device. None: numpy arrays.
        policy_device: the policy gets tensors on this device, and is copied there if it is a module that lives
            elsewhere. None: modules get tensors where their parameters are, other policies numpy arrays.
        env_device: None or "cpu", where environments are.
        create_env_kwargs: keyword arguments for `create_env_fn`.
        max_frames_per_traj: truncate episodes at that many steps, in each environment, across batches. None, or a
            number below one: do not. `ValueError` where observations have an entry `step_count`.
        init_random_frames: take random actions until so many steps are collected, rounded up to whole batches. The
            policy's extras are zero there (it is asked once, beside, for what they are), and `batch.random` is True.
        reset_at_each_iter: reset all environments before each batch.
        postproc: called with each batch of the iterator, after `split_trajs`; what it returns is the batch. Moved to
            the storing device first, where it has `to`. Afterwards extras whose names begin with "_" are removed.
        split_trajs: the iterator gives `batch.split_trajectories()`.
        exploration_type: what is taken from a distribution that the policy returns; `exploration_mode` is its old name.
        return_same_td: give the same object with every batch, in the same memory: what was in it is overwritten.
        reset_when_done: only True.
        interruptor: asked after every round whether the batch ends now; what was not collected is masked.
        set_truncated: mark the last step of each environment in a batch as truncated. Its episode goes on all the same.
        compile_policy, cudagraph_policy: ask the policy faster, see `collector.prepare.prepare_policy`; True, or a dict
            of options. Weights that are replaced in place take effect all the same.

    Example::

        with SyncDataCollector(venv, policy, frames_per_batch=2048, total_frames=1_024_000) as collector:
            collector.set_seed(0)
            for batch in collector:
                learn(batch)                      # a Rollout: batch.obs, batch.action, batch.next.obs, ...

    >>> import gymnasium as gym
    >>> with SyncDataCollector([lambda: gym.make("CartPole-v1")] * 2, frames_per_batch=10) as collector:
    ...     collector.next()
    Rollout(2 environments, 5 steps, 10 frames, 0 episode ends)
    """

    def _prepare(self, policy: Policy | None) -> None:
        if self.env.is_async:
            raise ValueError("a synchronous collector needs a vector env without wait_num and timeout")
        super()._prepare(policy)
        self._tape: Tape | None = None
        frames = self._round_up(self.requested_frames_per_batch)
        if frames != self.requested_frames_per_batch:
            warnings.warn(
                f"frames_per_batch={self.requested_frames_per_batch} is not a multiple of the {self._env_num} "
                f"environments: batches have {frames // self._env_num} steps of each, {frames} frames",
                stacklevel=3,
            )

    def _make_env(self, env_fns: list[Callable[[], Any]]) -> Any:
        return DummyVectorEnv(env_fns)

    def _round_up(self, frames: int) -> int:
        return -(-frames // self._env_num) * self._env_num

    def _land(self) -> None:
        """Nothing is in flight between batches."""

    def _forget(self) -> None:
        """Every step is in a batch."""

    def _gather(self, frames: int, actor: Actor, quota: np.ndarray | None, on_step: StepHook | None) -> Rollout:
        """One batch, recorded on a tape: see the picture at the top of this file."""
        n, tape = self._env_num, self._new_tape(frames // self._env_num)
        goal = np.full(n, tape.steps * n)
        if quota is not None:
            goal[quota == 0] = 0
        cursor = np.arange(n)  # the next row of each environment
        loop = _Loop(self, tape, actor, quota, on_step)
        ids, obs, stopped = np.flatnonzero(cursor < goal), None, False
        if self._obs is not None:
            tape.write("obs", cursor, self._obs)
            obs = nest.take(self._obs, ids)
        while len(ids) and not stopped:
            cursor[ids], stopped = loop.run(cursor[ids], ids, obs)
            if quota is not None:
                goal[quota == 0] = 0
            ids = np.flatnonzero(cursor < goal)
            obs = tape.read("obs", cursor[ids])
        self._obs = tape.read("obs", cursor)
        count = cursor // n
        batch = tape.finish(count, self._episodes, self._version(actor))
        self._episodes.advance(batch.done, batch.step_count, count)
        return batch

    def _new_tape(self, steps: int) -> Tape:
        if self._tape is not None and self._tape.steps == steps:
            self._tape.rewind()
            return self._tape
        tape = Tape(self._env_num, steps)
        if self._reuse:
            self._tape = tape
        return tape


class _Loop:
    """The rounds of one batch."""

    def __init__(
        self,
        collector: SyncDataCollector,
        tape: Tape,
        actor: Actor,
        quota: np.ndarray | None,
        on_step: StepHook | None,
    ) -> None:
        self._env, self._env_num = collector.env, collector._env_num
        self._tape, self._actor = tape, actor
        self._quota, self._on_step = quota, on_step
        self._over = collector._episodes.over
        self._taken, self._limit = collector._episodes.taken.copy(), collector._limit
        self._stopped = collector._stopped
        self._lap = collector._clock.lap
        self._autoreset = quota is None and autoresets(collector.env)

    def run(self, rows: np.ndarray, ids: np.ndarray, obs: Any) -> tuple[np.ndarray, bool]:
        """Rounds of the environments `ids` until one may have all its rows, or all its episodes.

        `rows` are their cursors, and `obs` their observations; returns the new cursors, and whether the collection is
        interrupted.
        """
        n, k, tape = self._env_num, len(ids), self._tape
        first, last = int(rows.min()) // n, int(rows.max()) // n
        where: Where = slice(first * n, first * n + n) if k == n and first == last else rows
        done = self._over[ids]
        over = done.nonzero()[0]  # the rows of a round whose environments are to be reset
        if self._autoreset and 0 < len(over) < k:  # now, so that they do not fall behind
            self._reset_some(ids[over], over, obs, rows[over])
            done, over = np.zeros_like(done), _NONE
        rounds, stopped = tape.steps - last, False
        while rounds and not stopped:
            resets = over
            if len(resets) == k:
                obs, over = self._reset(ids, where), _NONE
                continue
            outputs = self._choose(obs, ids, resets, done)
            autoreset = self._autoreset and rounds > 1
            obs, reward, terminated, truncated, info = self._step(outputs["action"], ids, resets, done, autoreset)
            if self._limit:
                truncated = self._cut_long(ids, resets, truncated)
            # An environment that is reset writes to the row of its next step, which overwrites it.
            tape.write_step(where, outputs, reward, terminated, truncated)
            done = terminated | truncated
            over = done.nonzero()[0]
            last_obs, begun = _last_obs(obs, over, info) if len(over) else (None, [])
            if self._on_step is not None:
                before = tape.read("obs", _as_rows(where))
                after = _with_rows(obs, over, last_obs) if begun else obs
                step = StepBatch(ids, before, outputs["action"], reward, terminated, truncated, after, info)
                self._call_hook(step, _as_rows(where), resets)
            where = _advance(where, n, resets)
            tape.write("obs", where, obs)
            rounds -= 1
            if len(over) and self._end_episodes(ids, over, _as_rows(where) - n, last_obs, info):
                break
            if begun:
                self._actor.begin(ids[begun])
                done[begun] = False
                over = done.nonzero()[0]
            self._lap("storage")
            stopped = self._stopped()
        self._over[ids] = False
        self._over[ids[over]] = True
        return _as_rows(where), stopped

    def _reset(self, ids: np.ndarray, where: Where) -> Any:
        """A round in which there is nothing but resets; returns the observations."""
        self._actor.begin(ids)
        obs, _ = self._env.reset(None if len(ids) == self._env_num else ids)
        self._lap("env")
        self._tape.write("obs", where, obs)
        return obs

    def _reset_some(self, env_ids: np.ndarray, rows: np.ndarray, obs: Any, where: np.ndarray) -> None:
        """Reset these environments, and write what they observe into these rows of `obs`."""
        self._actor.begin(env_ids)
        first, _ = self._env.reset(env_ids)
        self._lap("env")
        nest.put(obs, rows, first)
        self._tape.write("obs", where, first)

    def _choose(self, obs: Any, ids: np.ndarray, resets: np.ndarray, over: np.ndarray) -> Outputs:
        """The policy's outputs; it is not asked for the rows `resets` (in `over` a mask), which are reset."""
        if not len(resets):
            outputs = self._actor(obs, ids)
        else:
            self._actor.begin(ids[resets])
            outputs = self._actor(obs, ids, (~over).nonzero()[0])
        self._lap("act")
        return outputs

    def _step(
        self, action: np.ndarray, ids: np.ndarray, resets: np.ndarray, over: np.ndarray, autoreset: bool
    ) -> tuple[Any, ...]:
        everyone = len(ids) == self._env_num
        options: dict[str, Any] = {"autoreset": True} if autoreset else {}
        if len(resets):
            options["reset"] = over if everyone else ids[resets]
        step: tuple[Any, ...] = self._env.step(action, None if everyone else ids, **options)
        self._lap("env")
        return step

    def _cut_long(self, ids: np.ndarray, resets: np.ndarray, truncated: np.ndarray) -> np.ndarray:
        """Truncate episodes that have as many steps as they may."""
        self._taken[ids] += 1
        self._taken[ids[resets]] = 0
        return truncated | (self._taken[ids] >= self._limit)

    def _end_episodes(self, ids: np.ndarray, over: np.ndarray, rows: np.ndarray, last_obs: Any, info: Any) -> bool:
        """Note the episodes that ended in this round; returns whether an environment now has all that it is to have."""
        self._taken[ids[over]] = 0
        if broken := restarted(over, info):
            self._tape.break_episodes(rows[broken])
            whole = ~np.isin(over, broken)
            over, last_obs = over[whole], nest.take(last_obs, whole)
        self._tape.end_episodes(rows[over], last_obs)
        if self._quota is None:
            return False
        self._quota[ids[over]] -= 1
        return bool((self._quota[ids[over]] == 0).any())

    def _call_hook(self, step: StepBatch, rows: np.ndarray, resets: np.ndarray) -> None:
        """Show the round to the hook, without those that were reset, and store what it returns."""
        assert self._on_step is not None
        stepped = np.delete(np.arange(len(rows)), resets)
        extras = self._on_step(StepBatch(*(nest.take(column, stepped) for column in step)))
        for name, values in (extras or {}).items():
            self._tape.write(name, rows[stepped], np.asarray(values))


_NONE = np.zeros(0, np.int64)


def _advance(where: Where, n: int, stay: np.ndarray) -> Where:
    """The next rows of all environments but those that `stay`."""
    if isinstance(where, slice) and not len(stay):
        return slice(where.start + n, where.stop + n)
    rows = _as_rows(where) + n
    rows[stay] -= n
    return rows


def _last_obs(obs: Any, over: np.ndarray, info: Any) -> tuple[Any, list[int]]:
    """The last observations of the episodes that ended in these rows of a round, and which of them were reset in it."""
    last, begun = nest.take(obs, over), []
    for j, row in enumerate(over.tolist()):
        if "final_obs" in info[row]:
            nest.put(last, j, info[row]["final_obs"])
            begun.append(row)
    return last, begun


def _with_rows(obs: Any, rows: np.ndarray, values: Any) -> Any:
    """A copy of `obs` with `values` in these rows."""
    copy = nest.map(np.copy, obs)
    nest.put(copy, rows, values)
    return copy


def _as_rows(where: Where) -> np.ndarray:
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where
