"""Schedules: which envs act in the next round, which envs are reset, and when the results arrive.

A schedule yields rounds `(ids, begins, resets, autoreset)`:

- `ids`: the envs of the round.
- `begins`: ids of the envs that are reset in a separate round before, or `None`.
- `resets`: mask of the envs in `ids` that are reset in this round instead of a step, or `None`.
- `autoreset`: True if workers reset an env in the round of its last step, or the seeds of these resets.

After an episode, the env is reset in the first possible way::

    1. by its worker in  env 0    s0   s1#  s2   s3   s4   s5    s = step, with its row in the batch
       the same round    env 1    s0   s1   s2   s3#  s4   s5    # = the episode ends

    2. while other envs  env 0    s0   s1#  R    s2   s3   s4    R = reset
       step              env 1    s0   s1   s2   s3#  R    s4#

    3. in a separate     env 0    s0   s1        s2   s3   s4#
       round             env 1    s0   s1#  R    s2   s3   s4

Way 1 is not possible if

- the backend cannot reset an env in a step,
- `max_frames_per_traj` or a hook ended the episode, and the worker does not know,
- an env of the round has no next episode,
- the step is the last of its batch, because the program may never collect another batch.

Way 2 needs `episode_seeds`, because the policy then gets a row for every env in each round. The first round of a batch
uses way 3 if the backend supports way 1. After ways 1 and 3, all envs are at one time index. The policy gets the same
inputs, and rows, after each way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from collector.basics.timing import Clock
from collector.batch.arrival_log import ArrivalLog
from collector.batch.step_extras import has_columns
from collector.batch.step_log import StepLog
from collector.episodes.env_episodes import Episodes
from collector.policy.collector_policy import CollectorPolicy
from vecenv import nest
from vecenv.wrappers import resets_in_step, step_with_views

NO_ENVS = np.zeros(0, np.int64)
Round = tuple[np.ndarray, np.ndarray | None, np.ndarray | None, Any]
Received = tuple[np.ndarray, Any, np.ndarray | None, Any]
"""Ids of envs, the results of their round, and `resets` and `autoreset` of this round."""


class LoopParts(NamedTuple):
    env: Any
    policy: CollectorPolicy
    episodes: Episodes
    clock: Clock
    stops: Callable[[], bool]
    """Returns True if the batch has to end now."""


def everyone(log: StepLog, episodes: Episodes, in_step: bool) -> Iterator[Round]:
    """All envs step in every round."""
    over = episodes.over
    for time in range(1, log.steps + 1):
        yield log.all_ids, over.nonzero()[0] if np.count_nonzero(over) else None, None, in_step and time < log.steps


def with_quota(log: StepLog, episodes: Episodes, in_step: bool, quota: np.ndarray) -> Iterator[Round]:
    """Each env steps until it has ended `quota` episodes. Then it pauses, and the policy gets no row of it."""
    for time in range(1, log.steps + 1):
        if not len(ids := log.in_order(quota.nonzero()[0])):
            return
        over = episodes.over[ids]
        autoreset = in_step and time < log.steps and bool(quota[ids].min() > 1)
        yield ids, ids[over] if np.count_nonzero(over) else None, None, autoreset


def with_seeds(log: StepLog, episodes: Episodes, in_step: bool) -> Iterator[Round]:
    """Each env plays the next episode of `episode_seeds`. It pauses without one, and if its rows are full.

    The policy still gets the last observation of an env that pauses, so that actions of other envs do not depend on
    the pause.
    """
    for time in count(1):
        if time == 1 or log.ended or time > log.steps:
            ids = log.in_order(((log.counts < log.steps) & (episodes.ids >= 0)).nonzero()[0])
            if not len(ids):
                return
        begins = resets = None
        if np.count_nonzero(over := episodes.over[ids]):
            if over.all() or (in_step and time == 1):
                begins = ids[over]
            else:
                resets = over
        autoreset: Any = False
        if in_step and time < log.steps and (seeds := episodes.next_seeds[ids]).min() >= 0:
            autoreset = seeds
        yield ids, begins, resets, autoreset


class Together:
    """Schedule in which a round is complete when all its envs have answered."""

    overlaps = False
    """True if envs may be stepping between two batches."""
    shares_memory = False
    """True if the results of a round are views."""

    def __init__(self, parts: LoopParts) -> None:
        self._env, self._episodes, self._in_step = parts.env, parts.episodes, resets_in_step(parts.env)
        self._step: Any = None
        """`step` that returns views, or `None` if the env has none."""

    def rounds(self, log: StepLog, quota: np.ndarray | None, views: bool) -> Iterator[Round]:
        """Yield the rounds of a batch. views: results may be views that are valid until the next round."""
        self._step = step_with_views(self._env) if views else None
        self.shares_memory = self._step is not None
        if quota is not None:
            return with_quota(log, self._episodes, self._in_step, quota)
        return (with_seeds if self._episodes.is_seeded else everyone)(log, self._episodes, self._in_step)

    def exchange(self, ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: Any) -> Received | None:
        """Step or reset the envs of a round. Return the results of a round, which may be an earlier one."""
        some = () if len(ids) == len(self._episodes.ids) else (ids,)
        if resets is not None:
            seeds = self._episodes.seeds[ids[resets]].tolist()
            self._env.send(action, *some, reset=ids[resets], seed=seeds)
            return ids, self._env.recv(), resets, False
        step = self._step or self._env.step
        if autoreset is False:
            return ids, step(action, *some), None, False
        return ids, step(action, *some, autoreset=autoreset), None, True

    def receive(self) -> Received | None:
        """Wait for envs that are stepping. Return `None` if there are none."""
        return None

    def discard(self) -> None:
        """Wait for envs that are stepping. Ignore their results and errors."""


class InTurns(Together):
    """Schedule in which some envs step while the policy acts for other envs.

    Without `wait_num` and `timeout`, fixed groups of envs take turns: while a group steps, the policy chooses actions
    for the next group::

        policy    A0  B0          A1          B1          A2
        group A       |--- a0 ---|            |--- a1 ---|            A0: actions for group A; a0: group A steps
        group B                   |--- b0 ---|            |--- b1 ---|

    With `wait_num` or `timeout`, the policy acts for the envs that `recv` returns, while all other envs step.
    """

    overlaps = True

    def __init__(self, parts: LoopParts, groups: int) -> None:
        super().__init__(parts)
        self._groups = 1 if getattr(self._env, "steps_together", False) else groups
        self._queue: deque[np.ndarray] = deque()
        """Ids of each group that waits for its next round."""
        self._in_flight = np.zeros(self._env.env_num, np.bool_)
        self._resetting = np.zeros(self._env.env_num, np.bool_)

    def rounds(self, log: ArrivalLog, quota: np.ndarray | None, views: bool) -> Iterator[Round]:  # type: ignore[override]
        self._queue_idle()
        while log.frames < log.wanted:
            if not self._queue:
                if not self._in_flight.any():
                    return  # every env has played its quota of episodes
                yield NO_ENVS, None, None, False
                continue
            ids = self._queue.popleft()
            if len(ids := ids if quota is None else ids[quota[ids] > 0]):
                resets = self._episodes.over[ids]
                yield ids, None, resets if resets.any() else None, False

    def _queue_idle(self) -> None:
        idle = ~self._in_flight
        for ids in self._queue:
            idle[ids] = False
        ids = np.flatnonzero(idle)
        groups = 1 if self._env.is_async else min(self._groups, len(ids))
        self._queue.extend(ids[group::groups] for group in range(groups) if len(ids))

    def exchange(self, ids: np.ndarray, action: Any, resets: np.ndarray | None, autoreset: Any) -> Received | None:
        received = None if self._env.is_async and len(ids) else self.receive()
        if len(ids):
            self._send(ids, action, resets)
        return received

    def _send(self, ids: np.ndarray, action: Any, resets: np.ndarray | None) -> None:
        if resets is None:
            self._env.send(action, ids)
        elif resets.all():
            self._env.send(None, reset=ids)
        else:  # envs that are reset get the action of another env, which they ignore
            row = np.maximum((~resets).cumsum() - 1, 0)
            self._env.send(nest.take(action, row), ids, reset=ids[resets])
        self._in_flight[ids], self._resetting[ids] = True, False if resets is None else resets

    def receive(self) -> Received | None:
        if not self._in_flight.any():
            return None
        step = self._env.recv()
        ids = step[-1].ids if has_columns(step[-1]) else np.array([info["env_id"] for info in step[-1]])
        self._in_flight[ids] = False
        self._queue.append(ids)
        resets = self._resetting[ids]
        return ids, step, resets if resets.any() else None, False

    def discard(self) -> None:
        while waiting := len(self._env.waiting_id):
            try:
                self._env.recv()
            except Exception:
                if len(self._env.waiting_id) == waiting:
                    raise
        self._in_flight[:], self._queue = False, deque()
