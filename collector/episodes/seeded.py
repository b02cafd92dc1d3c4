"""Where each env is, where episodes have numbers and seeds of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from collector.episodes.progress import Episodes
from collector.episodes.seeds import read_pair


class SeededEpisodes(Episodes):
    """The episodes in progress of N envs, which take the next `(number, seed)` whenever they have none.

    The id of an episode is its number. An env for which there is no further episode is idle.
    """

    def __init__(self, env_num: int, seeds: Iterable[tuple[int, int]]) -> None:
        super().__init__(env_num)
        self._source: Iterator[tuple[int, int]] = iter(seeds)
        self.numbers = np.full(env_num, -1)
        """int64 `(N,)`: the episode that each env is in, or will begin; -1: none."""
        self.seeds = np.full(env_num, -1)
        """int64 `(N,)`: the seed of that episode."""
        self._played: list[list[tuple[int, int]]] = [[] for _ in range(env_num)]
        """The episodes of each env in this batch, by number and seed."""

    def begin_batch(self) -> None:
        """Note that the steps that follow are numbered from here on, and ask for episodes for the envs that have
        none."""
        self._played = [[pair] for pair in zip(self.numbers.tolist(), self.seeds.tolist(), strict=True)]
        for env_id in np.flatnonzero(self.numbers < 0).tolist():
            self._take(env_id)
            self._played[env_id] = [(int(self.numbers[env_id]), int(self.seeds[env_id]))]

    def end(self, env_ids: np.ndarray) -> None:
        """Note that the episodes of these envs are over; each takes the next one."""
        self.over[env_ids] = True
        for env_id in env_ids.tolist():
            self.numbers[env_id] = -1
            self._take(env_id)
            self._played[env_id].append((int(self.numbers[env_id]), int(self.seeds[env_id])))

    @property
    def all_played(self) -> bool:
        """Whether no env is in an episode. It asks for more first, which there may be again."""
        if (self.numbers < 0).all():
            self.begin_batch()
        return bool((self.numbers < 0).all())

    def _take(self, env_id: int) -> None:
        """Give the env the next episode, if there is one."""
        pair = next(self._source, None)
        number, seed = (-1, -1) if pair is None else read_pair(pair)
        if number >= 0 and (self.numbers == number).any():
            raise ValueError(f"episode_seeds gave episode {number} to env {env_id} while another env is in it")
        self.numbers[env_id], self.seeds[env_id] = number, seed

    def number(self, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Episode numbers and step counts `(N, T)` of the steps of this batch, of which those in `done` end one."""
        return self._of_steps(done, 0), super().number(done)[1]

    def seeds_of(self, done: np.ndarray) -> np.ndarray:
        """The seed of the episode of each of these steps: int64 `(N, T)`."""
        return self._of_steps(done, 1)

    def _of_steps(self, done: np.ndarray, which: int) -> np.ndarray:
        longest = max(map(len, self._played))
        table = np.full((len(done), longest), -1)
        for env_id, played in enumerate(self._played):
            table[env_id, : len(played)] = [pair[which] for pair in played]
        return np.take_along_axis(table, done.cumsum(1) - done, 1)

    def ids(self, env_ids: np.ndarray) -> np.ndarray:
        """The numbers of the episodes in progress."""
        return self.numbers[env_ids]

    @property
    def next_id(self) -> int:
        """0: the numbers are not this object's."""
        return 0

    def abandon(self, env_ids: Any = slice(None)) -> None:
        """Raises `RuntimeError` where one of these envs has taken a step in its episode: it is played to its end."""
        if self.taken[env_ids].any():
            number = int(self.numbers[env_ids][self.taken[env_ids].nonzero()[0][0]])
            raise RuntimeError(
                f"with episode_seeds every episode is played to its end, and episode {number} is in progress: make a "
                "new collector in place of a reset"
            )

    def skip_to(self, next_id: int) -> None:
        """The numbers stay those of `episode_seeds`."""
        self.abandon()
