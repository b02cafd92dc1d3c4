"""Seeds of the global generators of worker processes."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random

import numpy as np

_launches = itertools.count()
"""Count of launches in this process, so that no two workers get the same seeds."""


def worker_seeds(index: int) -> tuple[bytes, bytes]:
    """Return seeds for numpy's and Python's generators in the next worker, without advancing the generators here."""
    states = np.random.get_state(legacy=False), random.getstate()
    where = index, next(_launches)
    of_numpy, of_python = (hashlib.sha256(pickle.dumps((state, where))).digest() for state in states)
    return of_numpy, of_python


def seed_generators(seeds: tuple[bytes, bytes]) -> None:
    """Seed numpy's and Python's generators of this process."""
    of_numpy, of_python = seeds
    np.random.seed(np.frombuffer(of_numpy, np.uint32))
    random.seed(of_python)
