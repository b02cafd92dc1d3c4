"""Where each env is: which episode, how many steps into it, and whether that episode is over."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.engine.recovery import is_repeated


class Episodes:
    """The episodes in progress of N envs. The k-th episode of env n has the id `k * N + n`.

    So ids are unique within a collector, grow with time in each env, and are the same whatever the batches are.
    """

    def __init__(self, env_num: int) -> None:
        self._envs = np.arange(env_num)
        self.over = np.ones(env_num, np.bool_)
        """Whether an env has to be reset before its next step."""
        self.index = np.zeros(env_num, np.int64)
        """The episode that it is in, or will begin."""
        self.taken = np.zeros(env_num, np.int64)
        """Steps taken in that episode."""
        self.broken = 0
        """How many episodes broke off because their env failed."""
        self.first_failure = ""
        """The first of these envs, with its error."""

    def abandon(self, env_ids: Any = slice(None)) -> None:
        """Abandon the episodes in progress of these envs: they are reset, and get new ids."""
        self.index[env_ids] += self.taken[env_ids] > 0
        self.taken[env_ids] = 0
        self.over[env_ids] = True

    def ids(self, env_ids: np.ndarray) -> np.ndarray:
        """The ids of the episodes in progress."""
        return self.index[env_ids] * len(self._envs) + env_ids

    @property
    def next_id(self) -> int:
        """An id that is larger than all ids so far."""
        return int(self.index.max() + 1) * len(self._envs)

    def skip_to(self, next_id: int) -> None:
        """Use no id below this one from now on."""
        self.abandon()
        self.index[:] = np.maximum(self.index, -(-next_id // len(self._envs)))

    def number(self, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Episode ids and step counts `(N, T)` of the steps that follow, of which those in `done` end an episode."""
        n, steps = done.shape
        before = done.cumsum(1) - done
        ids = (self.index[:, None] + before) * n + self._envs[:, None]
        # The row in which the episode of a row began; below zero where that was in a batch before.
        began = np.empty((n, steps), np.int64)
        began[:, 0] = -self.taken
        began[:, 1:] = np.where(done[:, :-1], np.arange(1, steps), np.iinfo(np.int64).min)
        return ids, np.arange(steps) - np.maximum.accumulate(began, axis=1)

    def advance(self, done: np.ndarray, step_count: np.ndarray, count: np.ndarray) -> None:
        """Go on to where the envs are after steps that were numbered so, `count` of each."""
        stepped = np.flatnonzero(count)
        last = count[stepped] - 1
        self.taken[stepped] = np.where(done[stepped, last], 0, step_count[stepped, last] + 1)
        self.index += done.sum(1)

    def step(self, env_ids: np.ndarray, done: np.ndarray) -> None:
        """One step of these envs, of which those in `done` (a mask) ended their episode."""
        self.taken[env_ids] += 1
        ended = env_ids[done]
        self.taken[ended] = 0
        self.index[ended] += 1
        self.over[env_ids] = done

    def note_failures(self, env_ids: np.ndarray, rows: np.ndarray, info: Any) -> list[int]:
        """Which of these rows of a round ended because their env failed (`on_error="restart"`); they are counted."""
        # Both are there after a restart; the infos of an env may have one of these keys too.
        failed = [row for row in rows.tolist() if is_repeated(info[row])]
        if failed and not self.broken:
            self.first_failure = f"env {env_ids[failed[0]]}: {info[failed[0]]['error']}"
        self.broken += len(failed)
        return failed
