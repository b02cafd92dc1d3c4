"""Common parts of the collector's tests: envs, policies, and the columns of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import AsyncDataCollector, EpisodeSeeds, FlatRollout, Rollout, SyncDataCollector
from tests.support.countdown import Countdown
from vecenv import DummyVectorEnv

kinds = pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])


COLLECTORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sync": (SyncDataCollector, {}),
    "async": (AsyncDataCollector, {}),
    "seeded": (SyncDataCollector, {"episode_seeds": EpisodeSeeds(0)}),
}
"""Kinds of collectors, with their options."""


def countdowns(*lengths: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(Countdown, length) for length in lengths]


def cartpoles(n: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(gymnasium.make, "CartPole-v1")] * n


def pendulums(n: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=13)] * n


def lean(obs: np.ndarray) -> np.ndarray:
    """Deterministic policy for CartPole."""
    return (obs[:, 2] > 0).astype(np.int64)


def zeros(obs: Any) -> np.ndarray:
    return np.zeros(len(obs["a"] if isinstance(obs, dict) else obs), np.int64)


def batch_of(source: Any, policy: Any, frames: int, kind: Any = SyncDataCollector, **options: Any) -> Any:
    """Return the first batch of a collector."""
    with kind(source, policy, frames_per_batch=frames, **options) as collector:
        return collector.rollout()


def of_countdowns(*lengths: int, policy: Any = zeros, steps: int = 10, **options: Any) -> SyncDataCollector:
    """Make a collector of countdowns, with `steps` steps of each env in a batch."""
    return SyncDataCollector(
        DummyVectorEnv(countdowns(*lengths)), policy, frames_per_batch=steps * len(lengths), **options
    )


def arrays(batch: Rollout | FlatRollout) -> dict[str, np.ndarray]:
    names = ("obs", "action", "reward", "terminated", "truncated", "traj_ids", "step_count")
    return {name: getattr(batch, name) for name in names} | {"next_obs": batch.next.obs}


def by_env(batches: Iterable[Rollout | FlatRollout]) -> list[dict[str, np.ndarray]]:
    """Return the steps of each env over all batches."""
    flats = [batch.flatten() for batch in batches]
    ids = np.concatenate([flat.env_ids for flat in flats])
    columns = [arrays(flat) for flat in flats]
    whole = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
    return [{name: rows[ids == env] for name, rows in whole.items()} for env in range(ids.max() + 1)]


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    for name in left.keys() & right.keys():
        assert left[name].dtype == right[name].dtype, name
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
