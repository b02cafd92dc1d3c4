"""Number the episodes of a collector, and derive a seed and random bits for each.

The bits depend on a key alone, (job seed, episode number, step): a generator that is advanced gives other numbers where
episodes run in another order. They are a hash of where they are used, so that an episode gets the same ones in any env,
on any backend, and after a job was killed. It is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014) on 64-bit
integers, whose arithmetic is exact: the bits are the same with every version of numpy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from collector.basics.whole_numbers import whole
from vecenv.extending import check_seed

_STEP = np.uint64(0x9E3779B97F4A7C15)
_WORD = np.uint64(0xD1B54A32D192ED03)
_SEED, _ACTION_SEED = 0x8CB92BA72F3D8DD7, 0xA0761D6478BD642F
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_SCALE = 2.0**-52
_MAX = 2**64 - 1


def _mix(bits: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers that spreads each bit over all of them; writes into its argument."""
    bits ^= bits >> _SHIFTS[0]
    bits *= _FACTORS[0]
    bits ^= bits >> _SHIFTS[1]
    bits *= _FACTORS[1]
    bits ^= bits >> _SHIFTS[2]
    return bits


def _mix_one(bits: int) -> int:
    """`_mix` of one Python integer, for which calls of numpy would take ten times as long."""
    bits = (bits ^ bits >> 30) * int(_FACTORS[0]) & _MAX
    bits = (bits ^ bits >> 27) * int(_FACTORS[1]) & _MAX
    return bits ^ bits >> 31


@lru_cache
def _job_key(job_seed: int) -> int:
    return _mix_one(check_seed(job_seed) + int(_WORD) & _MAX)


def _seed(job_seed: int, number: int, purpose: int) -> int:
    """A seed in 0 .. 2**31 - 1 for one purpose in an episode."""
    return _mix_one(_mix_one(_mix_one(number + int(_STEP) & _MAX) ^ _job_key(job_seed)) ^ purpose) >> 33


def episode_keys(job_seed: int, numbers: np.ndarray) -> np.ndarray:
    """The keys of episodes of a job, uint64 `(k,)`, for their numbers, int64 `(k,)`."""
    return _mix(_mix(numbers.view(np.uint64) + _STEP) ^ np.uint64(_job_key(job_seed)))


def episode_seed(job_seed: int, number: int) -> int:
    """The seed with which episode `number` of a job is reset: in 0 .. 2**31 - 1, from these two numbers alone.

    >>> [episode_seed(3, number) for number in range(3)]
    [1663660961, 1215352495, 974320961]
    """
    return _seed(job_seed, number, _SEED)


def action_seed(job_seed: int, number: int) -> int:
    """The seed of the action space in episode `number` of a job, whose random actions are `space.sample()`: as
    `episode_seed`, but another one, with which the env's own draws have nothing in common.

    >>> [action_seed(3, number) for number in range(3)]
    [1665845680, 834886420, 186418047]
    """
    return _seed(job_seed, number, _ACTION_SEED)


def random_bits(keys: np.ndarray, steps: np.ndarray, words: int) -> np.ndarray:
    """`words` random 64-bit integers for each step of these episodes: uint64 `(..., words)`.

    `keys` `(...)` are those of `episode_keys`, `steps` `(...)` int64: how many steps of the episode came before.
    """
    state = _mix(keys + (steps.astype(np.int64).view(np.uint64) + np.uint64(1)) * _STEP)
    return _mix(state[..., None] + np.arange(1, words + 1, dtype=np.uint64) * _WORD)


def uniforms(bits: np.ndarray) -> np.ndarray:
    """Random bits as numbers above 0 and below 1: float64, multiples of 2**-53."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * _SCALE


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
        self._skip = {int(number) for number in skip}
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
            number = next(each for each in map(_check_number, self._numbers) if each not in self._skip)
        return number, episode_seed(self.job_seed, number)


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
