"""`Episodes`: record which episode each env plays, how many steps it has, and whether it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from collector.batch.rollout import RewardShape
from collector.batch.step_extras import without_last
from collector.episodes.seeds import read_pair
from vecenv import nest
from vecenv.extending import is_repeated


class Episodes:
    """The episodes in progress of N envs.

    The k-th episode of env n has the id `k * N + n`: unique within a collector, growing with time in each env, and the
    same whatever the batches are. With `seeds`, pairs `(number, seed)`, an env takes the next pair whenever it has
    none, and the id of an episode is its number; an env for which there is no further pair is idle. With `ahead` each
    env in an episode also reserves its next pair; if no pair is left, an idle env takes over another env's. `limit`:
    steps at which an episode is truncated, or 0.
    """

    def __init__(
        self, env_num: int, seeds: Iterable[tuple[int, int]] | None = None, ahead: bool = False, limit: int = 0
    ) -> None:
        self.limit = limit
        self.obs: Any = None
        """Observations from which the next batch goes on: a row for each env; None before there are some."""
        self.infos = np.full(env_num, None)
        """The latest info of each env."""
        self.reward_shape = RewardShape()
        self._envs, self._is_ahead = np.arange(env_num), ahead
        self._held: dict[int, tuple[int, int]] = {}
        """The next episode of each env that holds one."""
        self._source: Iterator[tuple[int, int]] | None = None if seeds is None else iter(seeds)
        self._playing: set[int] = set()
        self.over = np.ones(env_num, np.bool_)
        """True if an env has to be reset before its next step."""
        self.ids = self._envs.copy() if seeds is None else np.full(env_num, -1)
        """int64 `(N,)`: the episode that each env is in, or will begin; -1: none."""
        self.seeds = np.full(env_num, -1)
        """int64 `(N,)`: the seed of that episode."""
        self.next_seeds = np.full(env_num, -1)
        """int64 `(N,)`: that of the episode which each env holds; -1: none."""
        self.taken = np.zeros(env_num, np.int64)
        """int64 `(N,)`: steps taken in that episode."""
        self.broken = 0
        """The number of episodes that broke off because their env failed."""
        self.first_failure = ""
        """The first of these envs, with its error."""
        self._log: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        """Envs that began or went on to episodes in this batch, with their ids and seeds."""
        self._taken_before = self.taken

    def share(self, ids: np.ndarray, taken: np.ndarray) -> None:
        """Keep the ids and the counts of steps in these arrays from now on, which keyed noise reads."""
        ids[:], taken[:] = self.ids, self.taken
        self.ids, self.taken = ids, taken

    def begin_batch(self) -> None:
        """Number the steps that follow from here on. Envs that have no episode ask for one."""
        if self._source is not None:
            self._assign(np.flatnonzero(self.ids < 0))
        self._log = [(self._envs, self.ids.copy(), self.seeds.copy())]
        self._taken_before = self.taken.copy()

    def begin(self, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Record that the episodes of these envs begin, with these infos."""
        self.over[env_ids] = False
        # A step whose worker reset the env adds the last observation and info of the episode before.
        self.infos[env_ids] = nest.object_array([without_last(info) for info in infos])

    @property
    def is_seeded(self) -> bool:
        """Return whether episodes have seeds of their own."""
        return self._source is not None

    def count(
        self, ids: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, resets: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Count the steps of a round, in which the envs in the mask `resets` did not step.

        Return the rewards in their shape, the flags with long episodes cut, and which episodes the envs themselves
        have ended.
        """
        taken = self.taken
        if resets is not None:
            taken[ids] += ~resets
            terminated, truncated = terminated & ~resets, truncated & ~resets
        elif len(ids) == len(self._envs):
            taken += 1
        else:
            taken[ids] += 1
        by_env = terminated | truncated
        if self.limit:
            truncated = truncated | (taken[ids] >= self.limit)
        return self.reward_shape.fit(reward), terminated, truncated, by_env

    def end(self, ids: np.ndarray, ended: np.ndarray, info: Any, quota: np.ndarray | None) -> np.ndarray | None:
        """End the episodes in the rows `ended` of a round, and count down `quota`.

        Return in which of these rows the env failed: a mask, or None.
        """
        failures = self._note_failures(ids, ended, info)
        over = ids[ended]
        self._advance(over)
        failed = np.isin(ended, failures) if failures else None
        if quota is not None:
            quota[over if failed is None else over[~failed]] -= 1
        return failed

    def put_obs(self, ids: np.ndarray, obs: Any) -> None:
        """Set the observations from which the next batch goes on in these envs."""
        if self.obs is None:
            self.obs = nest.map(self.zeros_like, obs)
        nest.put(self.obs, ids, obs)

    def zeros_like(self, rows: np.ndarray) -> np.ndarray:
        """Return zeros for each env, of the shape and dtype of these rows."""
        return np.zeros((len(self._envs), *rows.shape[1:]), rows.dtype)

    def _advance(self, env_ids: np.ndarray) -> None:
        """Record that the episodes of these envs are over; each env goes on to its next episode."""
        self.over[env_ids] = True
        self.taken[env_ids] = 0
        if self._source is None:
            self.ids[env_ids] += len(self._envs)
        else:
            self._playing.difference_update(self.ids[env_ids].tolist())
            self.ids[env_ids] = -1
            self._assign(env_ids)
        self._log.append((env_ids, self.ids[env_ids], self.seeds[env_ids]))

    def _assign(self, env_ids: np.ndarray) -> None:
        """Give each of these envs the next episode, as long as there are some."""
        for env_id in env_ids.tolist():
            pair = self._held.pop(env_id, None) or self._read()
            if pair is None and self._held:
                pair = self._held.pop(other := next(iter(self._held)))
                self.next_seeds[other] = -1
            number, seed = (-1, -1) if pair is None else pair
            if number in self._playing:
                raise ValueError(f"episode_seeds gave episode {number} to env {env_id} while another env is in it")
            if number >= 0:
                self._playing.add(number)
            self.ids[env_id], self.seeds[env_id], self.next_seeds[env_id] = number, seed, -1
        for env_id in env_ids.tolist() if self._is_ahead else ():
            if self.ids[env_id] >= 0 and (pair := self._read()) is not None:
                self._held[env_id], self.next_seeds[env_id] = pair, pair[1]

    def _read(self) -> tuple[int, int] | None:
        assert self._source is not None
        pair = next(self._source, None)
        return None if pair is None else read_pair(pair)

    @property
    def all_played(self) -> bool:
        """Return whether no env is in an episode. It asks for more first, which there may be again."""
        if (self.ids < 0).all():
            self.begin_batch()
        return bool((self.ids < 0).all())

    def columns(self, done: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Episode ids, step counts and seeds (None: they have none) of the steps of this batch `(N, T)`, of which those
        in `done` end an episode.
        """
        n, steps = done.shape
        envs, ids, seeds = (np.concatenate(column) for column in zip(*self._log, strict=True))
        order = np.argsort(envs, kind="stable")
        first = np.searchsorted(envs[order], self._envs)
        at = order[first[:, None] + done.cumsum(1) - done]
        # The row in which the episode of a row began; below zero where that was in a batch before.
        began = np.empty((n, steps), np.int64)
        began[:, 0] = -self._taken_before
        began[:, 1:] = np.where(done[:, :-1], np.arange(1, steps), np.iinfo(np.int64).min)
        step_count = np.arange(steps) - np.maximum.accumulate(began, axis=1)
        return ids[at], step_count, None if self._source is None else seeds[at]

    def abandon(self, env_ids: Any = slice(None)) -> None:
        """Abandon the episodes in progress of these envs: they are reset, and get new ids.

        Raises `RuntimeError` where one with a seed is in progress: it is played to its end.
        """
        started = self._envs[env_ids][self.taken[env_ids] > 0]
        if self._source is not None:
            if len(started):
                raise RuntimeError(
                    f"with episode_seeds every episode is played to its end, and episode {self.ids[started[0]]} is in "
                    "progress: make a new collector in place of a reset"
                )
            return
        self.ids[started] += len(self._envs)
        self.taken[started] = 0
        self.over[env_ids] = True

    @property
    def next_id(self) -> int:
        """An id that is larger than all ids so far; 0 where ids are numbers of `seeds`."""
        n = len(self._envs)
        return 0 if self._source is not None else (int(self.ids.max()) // n + 1) * n

    def skip_to(self, next_id: int) -> None:
        """Use no id below this one from now on; numbers of `seeds` stay."""
        self.abandon()
        if self._source is None:
            n = len(self._envs)
            self.ids[:] = np.maximum(self.ids, -(-next_id // n) * n + self._envs)

    def _note_failures(self, env_ids: np.ndarray, rows: np.ndarray, info: Any) -> list[int]:
        """Count those of these rows of a round that ended because their env failed (`on_error="restart"`)."""
        # Both are there after a restart; the infos of an env may have one of these keys too.
        failed = [row for row in rows.tolist() if is_repeated(info[row])]
        if failed and not self.broken:
            last = info[failed[0]].get("final_info", info[failed[0]])
            self.first_failure = f"env {env_ids[failed[0]]}: {last['error']}"
        self.broken += len(failed)
        return failed
