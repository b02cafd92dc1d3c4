"""Seeds for a batch of envs: the list s, s+1, ... and the Markov chain of TorchRL's `set_seed`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

MAX_SEED = 2**63


def check_seed(seed: Any) -> int:
    """`seed` as a Python int; ValueError when it is not an integer of 0 .. 2**63 - 1 (bools are refused)."""
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ValueError(f"a seed must be a non-negative integer, got {seed!r} of type {type(seed).__name__}")
    if not 0 <= int(seed) < MAX_SEED:
        raise ValueError(f"a seed must be at least 0 and below 2**63, got {seed}")
    return int(seed)


def spread_seeds(seed: Any, env_ids: Iterable[int]) -> list[int | None]:
    """One seed for each env of `env_ids`: an int s gives env i the seed s + i, an iterable gives its entries in order.

    Raises ValueError for a wrong count or a bad seed, before anything is seeded.

    >>> spread_seeds(7, [0, 1, 3])
    [7, 8, 10]
    """
    ids = list(env_ids)
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if not isinstance(seed, Iterable) or isinstance(seed, (str, bytes, Mapping, Set)):
        first = check_seed(seed)
        return [check_seed(first + i) for i in ids]
    seeds = [None if s is None else check_seed(s) for s in seed]
    if len(seeds) != len(ids):
        raise ValueError(f"got {len(seeds)} seeds for {len(ids)} envs {ids}")
    return seeds


def next_seed(seed: int) -> int:
    """The seed that follows `seed` in the chain (as torchrl's `set_seed`; in 0 .. 2**32 - 2).

    >>> next_seed(0)
    795726461
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)


def seed_chain(seed: int, n: int) -> list[int]:
    """`n + 1` seeds: `seed` and its n successors; env i takes entry i, the last one starts the next call."""
    chain = [check_seed(seed)]
    for _ in range(n):
        chain.append(next_seed(chain[-1]))
    return chain
