"""Rounds of a vector env in different ways, and their rows as values that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.leaky import Leaky
from vecenv import DummyVectorEnv

N = 5


def by_autoreset(venv: Any, actions: Any, done: Any) -> Any:
    return venv.step(actions, autoreset=True)


def by_seeded_autoreset(venv: Any, actions: Any, done: Any) -> Any:
    return venv.step(actions, autoreset=[int(each) * 7 for each in actions])


def by_mask(venv: Any, actions: Any, done: Any) -> Any:
    return venv.step(actions, reset=done)


def by_reset(venv: Any, actions: Any, done: Any) -> Any:
    obs, *others, info = venv.step(actions)
    ends = others[1] | others[2]
    firsts = venv.reset(ends) if ends.any() else ()
    return obs, *others, info, *firsts


def rows(venv: Any, advance: Callable[..., Any]) -> Iterator[Any]:
    """Yield what each round returns, as comparable values."""
    yield plain(venv.reset(seed=3))
    n = len(venv)
    done = np.zeros(n, bool)
    rng = np.random.default_rng(0)
    while True:
        batch = advance(venv, rng.integers(0, 9, n), done)
        done = batch[2] | batch[3]
        yield plain(batch)


def plain(value: Any) -> Any:
    """Return a value with lists in place of arrays and tuples."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def undisturbed(advance: Callable[..., Any], rounds: int, env_fns: Any = (Leaky,) * N, **attributes: Any) -> list[Any]:
    with DummyVectorEnv(env_fns) as venv:
        for name, value in attributes.items():
            venv.set_env_attr(name, value, [1])
        produced = rows(venv, advance)
        return [next(produced) for _ in range(rounds)]
