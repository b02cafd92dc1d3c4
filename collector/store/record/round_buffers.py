"""The memory into which rounds are recorded: see the picture in `recorder`."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv import nest

_ROUNDS = 256
_BYTES = 2**24
"""Room for so many rounds, or for so many bytes of them, whichever is less, as long as episodes are short."""


class RoundBuffers:
    """Columns of rows, of which the first `room` are the rest, and those behind them rounds of `n` rows.

    `obs` and `action` are rows of one round, which give the dtypes and shapes.
    """

    def __init__(self, n: int, obs: Any, action: Any) -> None:
        self._n = n
        row = sum(leaf[:1].nbytes for tree in (obs, action) for leaf in nest.leaves(tree)) + 10
        self.rounds = max(2, min(_ROUNDS, _BYTES // max(1, n * row)))
        self.room = self.rounds * n
        flags = np.zeros(n, np.bool_)
        columns = {"obs": obs, "action": action, "terminated": flags, "truncated": flags}
        self._rows = {name: nest.map(self._new, rows) for name, rows in columns.items()}
        self.of_rounds = {name: nest.map(self._as_rounds, rows) for name, rows in self._rows.items()}
        """The rounds by name: trees of `(rounds + 1, n, ...)`; the last one is for the observations after it."""
        self._tails = nest.map(lambda leaf: np.zeros((4 * n, *leaf.shape[1:]), leaf.dtype), obs)
        self._tail_room, self._tail_count = 4 * n, 0

    def add_rewards(self, reward: np.ndarray) -> None:
        """Make the column of the rewards, of which these are a round."""
        self._rows["reward"] = self._new(reward)
        self.of_rounds["reward"] = self._as_rounds(self._rows["reward"])

    def add_tails(self, obs: list[Any]) -> np.ndarray:
        """Keep last observations of episodes that end, until `keep`; returns their places, for `take_tails`."""
        first = self._tail_count
        if self._tail_count + len(obs) > self._tail_room:
            self._tails = nest.map(lambda leaf: np.concatenate([leaf, np.zeros_like(leaf)]), self._tails)
            self._tail_room *= 2  # Ctrl-C before it leaves room unused
        for each in obs:
            nest.put(self._tails, self._tail_count, each)
            self._tail_count += 1
        return np.arange(first, first + len(obs))

    def take_tails(self, which: np.ndarray) -> Any:
        """Those of these places."""
        return nest.take(self._tails, which)

    def place(self, rounds: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """The rows of these envs in these rounds."""
        return self.room + rounds * self._n + envs

    def take(self, name: str, rows: np.ndarray) -> Any:
        """A copy of these rows of a column."""
        return nest.take(self._rows[name], rows)

    def keep(self, rows: np.ndarray, latest: np.ndarray) -> None:
        """Make these rows the rest, and the observations in the n rows `latest` those of the first round.

        The last observations are discarded.
        """
        self._tail_count = 0
        kept, obs = {name: self.take(name, rows) for name in self._rows}, self.take("obs", latest)
        if len(rows) > self.room:  # rounds as many as the rest, so that it is not moved more often than it grows
            self.rounds = 2 * -(-len(rows) // self._n)
            self.room = self.rounds * self._n
            self._rows = {name: nest.map(self._new, column) for name, column in self._rows.items()}
            self.of_rounds = {name: nest.map(self._as_rounds, column) for name, column in self._rows.items()}
        for name, column in kept.items():
            nest.put(self._rows[name], slice(0, len(rows)), column)
        nest.put(self.of_rounds["obs"], 0, obs)

    def _new(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((self.room + (self.rounds + 1) * self._n, *like.shape[1:]), like.dtype)

    def _as_rounds(self, column: np.ndarray) -> np.ndarray:
        return column[self.room :].reshape(self.rounds + 1, self._n, *column.shape[1:])
