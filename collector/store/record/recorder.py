"""EpisodeRecorder: takes the rows of rounds as they come, and gives a writer the episodes that have ended.

Rounds go into buffers as they are, and a log notes where episodes begin and end, so that a round costs a few
assignments. Whole episodes are cut out some hundred rounds at a time, by numpy. Then the rows of the episodes in
progress move to the front of the buffers, where they are the rest, and the rounds begin again::

    rest: env 0, env 0, env 2, ... | round 0: env 0, ..., env N-1 | round 1: env 0, ... | ...
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from collector.store.packed import PackedEpisodes
from collector.store.record.round_buffers import RoundBuffers
from collector.store.writer import StoreWriter
from vecenv import nest

BEGINS, ENDS, STOPS = 0, 1, 2
"""What the log notes of an env: an episode begins, ends, or is not recorded any further."""


class _Entry(NamedTuple):
    """What happened to some envs, when so many rounds of each had been."""

    kind: int
    envs: np.ndarray
    rounds: int | np.ndarray
    seeds: np.ndarray | None = None
    """Of episodes that begin; -1 where they are not known."""


class _Log(NamedTuple):
    """The same of every entry for one env: int64 `(k,)`. The first n are where each env was before."""

    kinds: np.ndarray
    envs: np.ndarray
    rounds: np.ndarray
    seeds: np.ndarray


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
        first = _Entry(BEGINS, self._all[goes_on], 0, seeds[goes_on]), _Entry(STOPS, self._all[~goes_on], 0)
        self._log: list[_Entry] = [*first]
        self._tails: list[Any] = []
        """The last observations of the episodes that end in the log, some at a time."""
        self._ended_at = float("inf")

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
        self._log.append(_Entry(BEGINS, envs, self._now(envs), known))

    def discard(self, ids: Any = slice(None)) -> None:
        """The episodes in progress of these envs are not recorded, nor what follows, until others begin."""
        envs = np.atleast_1d(self._all[ids])
        self._log.append(_Entry(STOPS, envs, self._now(envs)))

    def step(
        self,
        ids: np.ndarray | None,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        tails: Any = None,
    ) -> np.ndarray:
        """Rows of steps of these envs (None: all), and the observations after them; returns which ended an episode.

        `tails`: a function from row indices to the last observations, where `obs` has those of the next episodes.
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
            self._log.append(_Entry(ENDS, envs, self._now(envs)))
            self._tails.append(nest.take(obs, ended) if tails is None else tails(ended))
            self._ended_at = min(self._ended_at, time.monotonic())
        if time.monotonic() - self._ended_at > self._shard_seconds:
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
        """Give the writer the episodes that have ended, and commit them where that is due."""
        log = _joined(self._log)
        order = np.argsort(log.envs, kind="stable")  # of each env, one thing after another
        kinds = log.kinds[order]
        last = np.flatnonzero(np.diff(log.envs[order], append=self._n))
        ended = np.flatnonzero((kinds[1:] == ENDS) & (kinds[:-1] == BEGINS))
        begins, ends = order[ended], order[ended + 1]
        in_time = np.argsort(ends)
        begins, ends = begins[in_time], ends[in_time]
        if ends.size:
            which = (np.cumsum(log.kinds == ENDS) - 1)[ends]
            tails = nest.take(nest.merge(np.concatenate, self._tails), which)
            self.writer.add_packed(self._packed(log, begins, log.rounds[ends], tails))
        now = np.zeros(self._n, np.int64) + self._now(self._all)
        goes_on = kinds[last] == BEGINS
        begun = order[last][goes_on]
        counts = self._steps_of(log, begun, now[goes_on])
        self._buffers.keep(self._rows_of(log, begun, counts), self._buffers.place(now, self._all))
        rest, seeds = np.zeros(self._n, np.int64), np.full(self._n, -1)
        rest[goes_on], seeds[goes_on] = counts, log.seeds[begun]
        self._begin_log(goes_on, rest, seeds)
        self._round, self._rounds = 0, None
        if self.writer.waiting_bytes >= self._shard_bytes or self.writer.waiting_seconds > self._shard_seconds:
            self.writer.commit()

    def _rows_of(self, log: _Log, begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """So many rows of each of the episodes that begin at these places of the log, one after another."""
        envs = log.envs[begins]
        rest = np.where(begins < self._n, self._rest[envs], 0)
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(self._buffers.place(log.rounds[begins] - rest, envs), counts) + place * self._n
        if rest.any():
            is_rest = place < np.repeat(rest, counts)
            rows = np.where(is_rest, np.repeat(self._rest_begins[envs], counts) + place, rows)
        return rows

    def _steps_of(self, log: _Log, begins: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many steps they have, where they end before these rounds."""
        return np.where(begins < self._n, self._rest[log.envs[begins]], 0) + stop - log.rounds[begins]

    def _packed(self, log: _Log, begins: np.ndarray, stop: np.ndarray, tails: Any) -> PackedEpisodes:
        lengths = self._steps_of(log, begins, stop)
        # With the row behind each episode, where the last observation belongs.
        rows = self._rows_of(log, begins, lengths + 1)
        last = np.cumsum(lengths + 1) - 1
        obs = self._buffers.take("obs", rows)
        nest.put(obs, last, tails)
        steps = np.delete(rows, last)
        columns = {name: self._buffers.take(name, steps) for name in ("action", "reward", "terminated", "truncated")}
        return PackedEpisodes(
            obs,
            **columns,
            lengths=lengths,
            episode=np.full(len(lengths), -1),
            seed=log.seeds[begins],
            env_id=log.envs[begins].astype(np.int32),
        )


def _joined(entries: list[_Entry]) -> _Log:
    """Every entry for one env after another."""
    counts = [len(each.envs) for each in entries]
    seeds = np.full(sum(counts), -1)
    for each, stop in zip(entries, np.cumsum(counts).tolist(), strict=True):
        if each.seeds is not None:
            seeds[stop - len(each.envs) : stop] = each.seeds
    if all(each.rounds.__class__ is int for each in entries):
        rounds = np.repeat([each.rounds for each in entries], counts)
    else:
        rounds = np.concatenate([np.broadcast_to(each.rounds, len(each.envs)) for each in entries])
    kinds = np.repeat([each.kind for each in entries], counts)
    return _Log(kinds, np.concatenate([each.envs for each in entries]), rounds, seeds)


def _write_exactly(column: Any, at: Any, rows: Any) -> None:
    """Write rows of actions. Raises TypeError for those of another kind: 2.7 is no integer."""
    if column.__class__ is not np.ndarray:
        nest.merge(lambda pair: _write_exactly(pair[0], at, pair[1]), (column, rows))
        return
    values = nest.as_array(rows)
    column[at] = values if values.dtype == column.dtype else values.astype(column.dtype, casting="same_kind")


def space_rows(space: Any, n: int) -> Any:
    """Zeros in the form of `n` elements of a space: a tree of arrays `(n, ...)`.

    Raises TypeError for a space without an array form.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: space_rows(part, n) for key, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(space_rows(part, n) for part in space)
    if space.shape is None or np.dtype(space.dtype).kind not in "biuf":
        raise TypeError(f"{space} has no array form")
    return np.zeros((n, *space.shape), space.dtype)
