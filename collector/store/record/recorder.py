"""EpisodeRecorder: takes the rows of rounds as they come, and gives a writer the episodes that have ended.

Rounds go into buffers as they are, and a log notes where episodes begin and end, so that a round costs a few
assignments. Whole episodes are cut out some hundred rounds at a time, by numpy. Then the rows of the episodes in
progress move to the front of the buffers, where they are the rest, and the rounds begin again::

    rest: env 0, env 0, env 2, ... | round 0: env 0, ..., env N-1 | round 1: env 0, ... | ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from collector.interruptor import sigint_deferred
from collector.store.errors import DatasetError
from collector.store.packed import PackedEpisodes
from collector.store.record.round_buffers import RoundBuffers
from collector.store.writer import StoreWriter
from vecenv import nest

BEGINS, ENDS, STOPS = 0, 1, 2
"""What the log notes of an env: an episode begins, ends, or is not recorded any further."""


Entry = tuple[int, np.ndarray, int | np.ndarray, np.ndarray | None]
"""What happened, to which envs, when so many rounds of each had been; a note: the seeds of episodes that begin (None:
not known), and the places of the last observations of those that end."""


class _Log(NamedTuple):
    """The same of every env for itself: int64 `(k,)`. The first n are where each env was before."""

    kinds: np.ndarray
    envs: np.ndarray
    rounds: np.ndarray
    notes: np.ndarray


class EpisodeRecorder:
    """Records the episodes of `n` envs; `obs` and `action` are rows of one round, which give the dtypes and shapes.

    A shard is committed when its episodes have `shard_bytes`, or when the first of them is `shard_seconds` old.
    """

    def __init__(
        self, n: int, writer: StoreWriter, obs: Any, action: Any, shard_bytes: int, shard_seconds: float
    ) -> None:
        self.writer = writer
        self._n, self._shard_bytes, self._shard_seconds = n, shard_bytes, shard_seconds
        self._buffers, self._all = RoundBuffers(n, obs, action), np.arange(n)
        self._round = 0
        """How many rounds there are, while all envs take part in each;"""
        self._rounds: np.ndarray | None = None
        """otherwise those of each env: int64 `(n,)`."""
        self._begin_log(np.zeros(n, np.bool_), np.zeros(n, np.int64), np.full(n, -1))

    def _begin_log(self, goes_on: np.ndarray, rest: np.ndarray, seeds: np.ndarray) -> None:
        """Begin with an entry for each env: whether an episode goes on, of which the rest has so many rows."""
        self._rest, self._rest_begins = rest, np.cumsum(rest) - rest
        known = seeds[goes_on] if (seeds >= 0).any() else None
        self._log: list[Entry] = [(BEGINS, self._all[goes_on], 0, known), (STOPS, self._all[~goes_on], 0, None)]
        self._ended_at = 0.0
        """When the first of them ended; 0.0: none has."""

    def _now(self, ids: Any) -> int | np.ndarray:
        return self._round if self._rounds is None else self._rounds[ids]

    def begin(self, ids: np.ndarray | None, obs: Any, seeds: Sequence[int | None] | None = None) -> None:
        """Episodes of these envs (None: all) begin with these rows of observations. Those in progress are given up.

        `obs`: None where they are the last ones that `step` got.
        """
        envs = self._all if ids is None else ids
        if obs is not None:
            nest.put(self._buffers.of_rounds["obs"], (self._now(envs), envs), obs)
        known = None if seeds is None else np.array([-1 if seed is None else seed for seed in seeds], np.int64)
        self._log.append((BEGINS, envs, self._now(envs), known))

    def discard(self, ids: Any = slice(None)) -> None:
        """The episodes in progress of these envs are not recorded, nor what follows, until others begin."""
        envs = np.atleast_1d(self._all[ids])
        self._log.append((STOPS, envs, self._now(envs), None))

    def step(
        self,
        ids: np.ndarray | None,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        last_obs: Callable[[int], Any] | None = None,
    ) -> np.ndarray:
        """Rows of steps of these envs (None: all), and the observations after them; returns which ended an episode.

        `last_obs`: a function from a row to the last observation of the episode that ends there, where `obs` has the
        first of the next.
        """
        at, after, full = self._where(ids)
        if full:
            self.cut()
            at, after, _ = self._where(ids)
        columns = self._buffers.of_rounds
        if "reward" not in columns:
            self._buffers.add_rewards(nest.as_array(reward).astype(np.float64))
        _write_exactly(columns["action"], at, action)
        columns["reward"][at], columns["terminated"][at], columns["truncated"][at] = reward, terminated, truncated
        nest.put(columns["obs"], after, obs)
        if self._rounds is None:
            self._round += 1
        else:
            self._rounds[self._all if ids is None else ids] += 1
        ended: np.ndarray = (columns["terminated"][at] | columns["truncated"][at]).nonzero()[0]
        if ended.size:
            envs = ended if ids is None else ids[ended]
            find = last_obs or (lambda row: nest.take(obs, row))
            places = self._buffers.add_tails([find(row) for row in ended.tolist()])
            self._log.append((ENDS, envs, self._now(envs), places))  # Ctrl-C before it leaves places unused
            if not self._ended_at:
                self._ended_at = time.monotonic()
        if self._ended_at and time.monotonic() - self._ended_at > self._shard_seconds:
            self.cut()
        return ended

    def _where(self, ids: np.ndarray | None) -> tuple[Any, Any, bool]:
        """Where the rows of a round go, where the observations after it do, and whether there is no room for it."""
        if ids is None and self._rounds is None:
            return self._round, self._round + 1, self._round == self._buffers.rounds
        if self._rounds is None:
            self._rounds = np.full(self._n, self._round)
        envs = self._all if ids is None else ids
        at = self._rounds[envs]
        return (at, envs), (at + 1, envs), bool(at.max(initial=0) == self._buffers.rounds)

    def cut(self) -> None:
        """Give the writer the episodes that have ended, and commit them where that is due.

        Raises `DatasetError` for one that it refuses (a reward that is NaN), which is left out, and for a full disk.
        """
        with sigint_deferred():  # Ctrl-C would leave the log and the buffers in different states, and end the writer
            self._cut()

    def _cut(self) -> None:
        log = _joined(self._log)
        order = np.argsort(log.envs, kind="stable")  # of each env, one thing after another
        kinds = log.kinds[order]
        last = np.flatnonzero(np.diff(log.envs[order], append=self._n))
        ended = np.flatnonzero((kinds[1:] == ENDS) & (kinds[:-1] == BEGINS))
        begins, ends = order[ended], order[ended + 1]
        in_time = np.argsort(ends)
        begins, ends = begins[in_time], ends[in_time]
        packed = None
        if ends.size:
            packed = self._packed(log, begins, ends)
        now = np.zeros(self._n, np.int64) + self._now(self._all)
        goes_on = kinds[last] == BEGINS
        begun = order[last][goes_on]
        counts = self._steps_of(log, begun, now[goes_on])
        self._buffers.keep(self._rows_of(log, begun, counts), self._buffers.place(now, self._all))
        rest, seeds = np.zeros(self._n, np.int64), np.full(self._n, -1)
        rest[goes_on], seeds[goes_on] = counts, log.notes[begun]
        self._begin_log(goes_on, rest, seeds)
        self._round, self._rounds = 0, None
        try:
            if packed is not None:
                self._give(packed)
        finally:
            if self.writer.waiting_bytes >= self._shard_bytes or self.writer.waiting_seconds > self._shard_seconds:
                self.writer.commit()

    def _give(self, episodes: PackedEpisodes) -> None:
        """Give the writer these episodes; where it refuses one, all others, before that is raised."""
        try:
            self.writer.add_packed(episodes)
        except DatasetError:
            for each in episodes:
                with suppress(DatasetError):
                    self.writer.add(each)
            raise

    def _rows_of(self, log: _Log, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """So many rows of each of the episodes that begin at these places of the log, one after another."""
        envs, offsets, total = log.envs[begins], np.cumsum(counts) - counts, int(counts.sum())
        rest = np.where(begins < self._n, self._rest[envs], 0)
        # Of one episode the next row is n rows further.
        rows = np.repeat(self._buffers.place(log.rounds[begins] - rest - offsets, envs), counts)
        rows += np.arange(0, total * self._n, self._n)
        for which in rest.nonzero()[0].tolist():
            at, first, count = int(offsets[which]), int(self._rest_begins[envs[which]]), int(rest[which])
            rows[at : at + count] = np.arange(first, first + count)
        return rows

    def _steps_of(self, log: _Log, begins: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many steps they have, where they end before these rounds."""
        return np.where(begins < self._n, self._rest[log.envs[begins]], 0) + stop - log.rounds[begins]

    def _packed(self, log: _Log, begins: np.ndarray, ends: np.ndarray) -> PackedEpisodes:
        """The episodes that begin and end at these places of the log."""
        lengths = self._steps_of(log, begins, log.rounds[ends])
        # With the row behind each episode, where the last observation belongs.
        rows = self._rows_of(log, begins, lengths + 1)
        last = np.cumsum(lengths + 1) - 1
        obs = self._buffers.take("obs", rows)
        nest.put(obs, last, self._buffers.take_tails(log.notes[ends]))
        steps = np.delete(rows, last)
        columns = {name: self._buffers.take(name, steps) for name in ("action", "reward", "terminated", "truncated")}
        return PackedEpisodes(
            obs,
            **columns,
            lengths=lengths,
            episode=np.full(len(lengths), -1),
            seed=log.notes[begins],
            env_id=log.envs[begins].astype(np.int32),
        )


def _joined(entries: list[Entry]) -> _Log:
    """Every entry for one env after another."""
    kinds, envs, rounds, notes = zip(*entries, strict=True)
    counts = np.array([len(each) for each in envs])
    try:
        at = np.repeat(np.array(rounds, np.int64), counts)
    except (ValueError, TypeError):  # rounds of some envs
        at = np.concatenate([np.broadcast_to(each, len(some)) for each, some in zip(rounds, envs, strict=True)])
    known, stops = np.full(len(at), -1), np.cumsum(counts).tolist()
    for count, stop, note in zip(counts.tolist(), stops, notes, strict=True):
        if note is not None:
            known[stop - count : stop] = note
    return _Log(np.repeat(np.array(kinds), counts), np.concatenate(envs), at, known)


def _write_exactly(column: Any, at: Any, rows: Any) -> None:
    """Write rows of actions. Raises TypeError for those of another kind: 2.7 is no integer."""
    if column.__class__ is not np.ndarray:
        nest.merge(lambda pair: _write_exactly(pair[0], at, pair[1]), (column, rows))
        return
    values = nest.as_array(rows)
    column[at] = values if values.dtype == column.dtype else values.astype(column.dtype, casting="same_kind")
