"""The global random generators of a worker, numpy's and Python's, which follow from those of the program.

Inherited unchanged, they would be copies of one another; seeded from the system, they would not be reproducible in a
program that seeds its own before it makes a vector env.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random

import numpy as np

_launches = itertools.count()
"""Of all vector envs of this process: neither a second one nor a replaced worker repeats what was drawn."""


def worker_seeds(index: int) -> tuple[bytes, bytes]:
    """Seeds of numpy's and of Python's generator in the worker that is launched next; ours are read, not advanced."""
    states = np.random.get_state(legacy=False), random.getstate()
    where = index, next(_launches)
    of_numpy, of_python = (hashlib.sha256(pickle.dumps((state, where))).digest() for state in states)
    return of_numpy, of_python


def seed_generators(seeds: tuple[bytes, bytes]) -> None:
    of_numpy, of_python = seeds
    np.random.seed(np.frombuffer(of_numpy, np.uint32))
    random.seed(of_python)
