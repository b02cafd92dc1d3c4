"""Seeds of a collector's episodes, and random bits for each step.

The bits are a hash of (job seed, episode number, step), so that they do not depend on env, backend, or order. The hash
is SplitMix64's finalizer, which gives the same bits in every version of numpy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from vecenv.arguments import check_seed, whole

_STEP = np.uint64(0x9E3779B97F4A7C15)
_WORD = np.uint64(0xD1B54A32D192ED03)
_SEED, _ACTION_SEED = 0x8CB92BA72F3D8DD7, 0xA0761D6478BD642F
_INT_STEP, _INT_FACTORS = int(_STEP), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FACTORS = tuple(map(np.uint64, _INT_FACTORS))
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_SCALE = 2.0**-52
_MAX = 2**64 - 1


def _mix(bits: np.ndarray) -> np.ndarray:
    bits ^= bits >> _SHIFTS[0]
    bits *= _FACTORS[0]
    bits ^= bits >> _SHIFTS[1]
    bits *= _FACTORS[1]
    bits ^= bits >> _SHIFTS[2]
    return bits


def _mix_one(bits: int) -> int:
    """Mix one Python integer, without the overhead of numpy."""
    bits = (bits ^ bits >> 30) * _INT_FACTORS[0] & _MAX
    bits = (bits ^ bits >> 27) * _INT_FACTORS[1] & _MAX
    return bits ^ bits >> 31


@lru_cache
def _job_key(job_seed: int) -> int:
    return _mix_one(check_seed(job_seed) + int(_WORD) & _MAX)


@lru_cache(maxsize=1024)
def _episode_key(job_seed: int, number: int) -> int:
    return _mix_one(_mix_one(number + _INT_STEP & _MAX) ^ _job_key(job_seed))


def _seed(job_seed: int, number: int, purpose: int) -> int:
    return _mix_one(_episode_key(job_seed, number) ^ purpose) >> 33


def episode_keys(job_seed: int, numbers: np.ndarray) -> np.ndarray:
    """Hash job seed and episode numbers, int64 `(k,)`, to the keys of `random_bits`, uint64 `(k,)`."""
    return _mix(_mix(numbers.view(np.uint64) + _STEP) ^ np.uint64(_job_key(job_seed)))


def episode_seed(job_seed: int, number: int) -> int:
    """Return the seed in 0 .. 2**31 - 1 with which episode `number` of a job is reset.

    >>> [episode_seed(3, number) for number in range(3)]
    [1663660961, 1215352495, 974320961]
    """
    return _seed(check_seed(job_seed), _check_number(number), _SEED)


def action_seed(job_seed: int, number: int) -> int:
    """Return the seed of random actions in episode `number`, independent of `episode_seed`.

    >>> [action_seed(3, number) for number in range(3)]
    [1665845680, 834886420, 186418047]
    """
    return _seed(check_seed(job_seed), _check_number(number), _ACTION_SEED)


def action_seeds(job_seed: int, numbers: np.ndarray) -> list[int]:
    """Return the `action_seed` of each number, and a seed for -1 (no episode). `numbers`: int64 `(k,)`."""
    return [_seed(job_seed, number, _ACTION_SEED) for number in numbers.tolist()]


def random_bits(keys: np.ndarray, steps: np.ndarray, words: int) -> np.ndarray:
    """Return `words` random 64-bit integers per step: uint64 `(..., words)`.

    `keys` `(...)` come from `episode_keys`. `steps` int64 `(...)` counts the earlier steps of the episode.
    """
    state = _mix(keys + (steps.astype(np.int64).view(np.uint64) + np.uint64(1)) * _STEP)
    return _mix(state[..., None] + np.arange(1, words + 1, dtype=np.uint64) * _WORD)


def uniforms(bits: np.ndarray) -> np.ndarray:
    """Turn random bits into float64 numbers between 0 and 1 (exclusive)."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * _SCALE


class EpisodeSeeds:
    """Iterator of `(number, seed)` for `episode_seeds=` of a collector.

    Args:
        job_seed: determines the seed of each episode (`episode_seed`).
        numbers: episodes to play, in order; None: 0, 1, 2, ... without end.
        skip: episodes to leave out, for example if an earlier run played them.

    Raises `ValueError` for an invalid seed. The constructor (for `skip`), `next` and `again` raise `ValueError` for a
    number out of range, and `TypeError` for a number that is not whole.

    >>> [number for number, seed in EpisodeSeeds(3, numbers=range(5), skip=[0, 2])]
    [1, 3, 4]
    """

    def __init__(self, job_seed: int = 0, numbers: Iterable[int] | None = None, skip: Iterable[int] = ()) -> None:
        self.job_seed = check_seed(job_seed)
        self._numbers: Iterator[int] = count() if numbers is None else iter(numbers)
        self._skip = set(map(_check_number, skip))
        self._retries: deque[int] = deque()

    def again(self, number: int) -> None:
        """Repeat episode `number` before new episodes, for example because its env failed."""
        self._retries.append(_check_number(number))

    def __iter__(self) -> EpisodeSeeds:
        return self

    def __next__(self) -> tuple[int, int]:
        if self._retries:
            number = self._retries.popleft()
        else:
            while (number := _check_number(next(self._numbers))) in self._skip:
                pass
        return number, _seed(self.job_seed, number, _SEED)


def _check_number(number: Any) -> int:
    if number.__class__ is not int:
        number = whole("the number of an episode", number)
    if not 0 <= number < 2**63:
        raise ValueError(f"episodes are numbered from 0 to 2**63 - 1, got {number}")
    return number


def read_pair(pair: Any) -> tuple[int, int]:
    """Check a `(number, seed)`. Raises `TypeError` and `ValueError`."""
    try:
        number, seed = pair
    except (TypeError, ValueError):
        raise TypeError(f"episode_seeds must give pairs (number, seed), got {pair!r}") from None
    return _check_number(number), check_seed(seed)
