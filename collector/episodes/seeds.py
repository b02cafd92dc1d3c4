"""Which episodes a collector plays: their numbers, and the seeds with which they are reset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np

from collector.arguments import whole
from collector.episodes.keys import action_seed as action_seed
from collector.episodes.keys import episode_seed as episode_seed
from vecenv.engine.arguments import check_seed


class EpisodeSeeds:
    """The episodes of a job, in order: an iterator of `(number, seed)` for `episode_seeds=` of a collector.

    job_seed: the seed of each episode follows from this one and its number (`episode_seed`).
    numbers: the episodes to be played, in this order; None: 0, 1, 2, ... without end.
    skip: those that are left out, because an earlier run has played them.

    Raises `ValueError` for a seed or number that is negative or too large.

    >>> [number for number, seed in EpisodeSeeds(3, numbers=range(5), skip=[0, 2])]
    [1, 3, 4]
    """

    def __init__(self, job_seed: int = 0, numbers: Iterable[int] | None = None, skip: Iterable[int] = ()) -> None:
        self.job_seed = check_seed(job_seed)
        """The seed from which those of the episodes follow."""
        self._numbers: Iterator[int] = count() if numbers is None else iter(numbers)
        # An array: a job that resumes may have played millions.
        self._skip = np.unique(np.fromiter(skip, np.int64) if not isinstance(skip, np.ndarray) else skip)
        self._again: deque[int] = deque()

    def again(self, number: int) -> None:
        """Play an episode again, before those that come next: one that broke off because its env failed."""
        self._again.append(_check_number(number))

    def __iter__(self) -> EpisodeSeeds:
        return self

    def __next__(self) -> tuple[int, int]:
        if self._again:
            number = self._again.popleft()
        else:
            number = next(each for each in map(_check_number, self._numbers) if not self._is_skipped(each))
        return number, episode_seed(self.job_seed, number)

    def _is_skipped(self, number: int) -> bool:
        at = int(np.searchsorted(self._skip, number))
        return at < len(self._skip) and int(self._skip[at]) == number


def _check_number(number: Any) -> int:
    number = whole("the number of an episode", number)
    if not 0 <= number < 2**63:
        raise ValueError(f"episodes are numbered from 0 to 2**63 - 1, got {number}")
    return number


def read_pair(pair: Any) -> tuple[int, int]:
    """A `(number, seed)` as whole numbers. Raises `TypeError` and `ValueError` for anything else."""
    try:
        number, seed = pair
    except (TypeError, ValueError):
        raise TypeError(f"episode_seeds must give pairs (number, seed), got {pair!r}") from None
    return _check_number(number), check_seed(seed)
