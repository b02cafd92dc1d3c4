"""Random bits that depend on a key alone: (job seed, episode number, step).

A generator that is advanced gives other numbers where episodes run in another order. These are a hash of where they are
used instead, so that an episode gets the same ones in any env, on any backend, and after a job was killed. It is the
finalizer of SplitMix64 (Steele, Lea and Flood, 2014) on 64-bit integers, whose arithmetic is exact: the bits are the
same with every version of numpy, and computed for all rows at once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from vecenv.engine.arguments import check_seed

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
    """The same of one integer, for which calls of numpy would take ten times as long."""
    bits = (bits ^ bits >> 30) * int(_FACTORS[0]) & _MAX
    bits = (bits ^ bits >> 27) * int(_FACTORS[1]) & _MAX
    return bits ^ bits >> 31


@lru_cache
def _job_key(job_seed: int) -> int:
    return _mix_one(check_seed(job_seed) + int(_WORD) & _MAX)


def episode_keys(job_seed: int, numbers: np.ndarray) -> np.ndarray:
    """The keys of episodes of a job, uint64 `(k,)`, for their numbers, int64 `(k,)`."""
    return _mix(_mix(numbers.view(np.uint64) + _STEP) ^ np.uint64(_job_key(job_seed)))


def episode_seed(job_seed: int, number: int) -> int:
    """The seed with which episode `number` of a job is reset: in 0 .. 2**31 - 1, from these two numbers alone.

    >>> [episode_seed(3, number) for number in range(3)]
    [1663660961, 1215352495, 974320961]
    """
    return _mix_one(_mix_one(_mix_one(number + int(_STEP) & _MAX) ^ _job_key(job_seed)) ^ _SEED) >> 33


def action_seed(job_seed: int, number: int) -> int:
    """The seed of the action space in episode `number` of a job, whose random actions are `space.sample()`: as
    `episode_seed`, but another one, with which the env's own draws have nothing in common.

    >>> [action_seed(3, number) for number in range(3)]
    [1665845680, 834886420, 186418047]
    """
    return _mix_one(_mix_one(_mix_one(number + int(_STEP) & _MAX) ^ _job_key(job_seed)) ^ _ACTION_SEED) >> 33


def random_bits(keys: np.ndarray, steps: np.ndarray, words: int) -> np.ndarray:
    """`words` random 64-bit integers for each step of these episodes: uint64 `(..., words)`.

    `keys` `(...)` are those of `episode_keys`, `steps` `(...)` int64: how many steps of the episode came before.
    """
    state = _mix(keys + (steps.astype(np.int64).view(np.uint64) + np.uint64(1)) * _STEP)
    return _mix(state[..., None] + np.arange(1, words + 1, dtype=np.uint64) * _WORD)


def uniforms(bits: np.ndarray) -> np.ndarray:
    """Random bits as numbers above 0 and below 1: float64, multiples of 2**-53."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * _SCALE
