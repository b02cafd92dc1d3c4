"""Number of copies that a collector makes of an observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector
from collector.batch.rollout import FlatRollout
from tests.support.backends import one_of
from tests.support.collector_envs import zeros
from tests.support.memory import Memory
from vecenv import DummyVectorEnv, ShmemVectorEnv

ENVS, STEPS = 4, 12


class Unique(gymnasium.Env):
    """Env whose observations are different random numbers. Each number occurs once. Episodes have five steps."""

    observation_space = spaces.Box(0, 1, (3, 5), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._taken = 0
        return self.np_random.random((3, 5)), {}

    def step(self, action: Any) -> Any:
        self._taken += 1
        return self.np_random.random((3, 5)), 1.0, self._taken == 5, False, {"taken": self._taken}


def copies(backend: Any, policy: Any, collect: Callable[[Any], Any], kind: Any = SyncDataCollector, **kw: Any) -> int:
    """Return the number of memory blocks outside the arena that hold a typical observation.

    Last and first observations of episodes and batches are copied more often.
    """
    memory = Memory((3, 5), np.float64)
    with kind(backend([Unique] * ENVS), policy, frames_per_batch=ENVS * STEPS, **kw) as collector:
        collector.rollout()
        with memory.watched():
            batch = collect(collector)
    counts = memory.count()
    flat = batch if isinstance(batch, FlatRollout) else batch.flatten()
    blocks = [counts[row.tobytes()] for row in flat.obs[flat.step_count > 0]]
    assert min(blocks) > 0
    return int(np.median(blocks))


def rollout(collector: Any) -> Any:
    return collector.rollout()


def whole(collector: Any) -> Any:
    return collector.collect(n_episode=2 * ENVS).batch


def hooked(collector: Any) -> Any:
    return collector.collect(n_step=ENVS * STEPS, on_step=lambda step: None).batch


@pytest.mark.parametrize("backend", one_of([DummyVectorEnv, ShmemVectorEnv]))
@pytest.mark.parametrize(
    ("policy", "collect", "options", "expected"),
    [
        pytest.param(None, rollout, {}, 1, id="random: the batch"),
        pytest.param(zeros, rollout, {"episode_seeds": EpisodeSeeds(0)}, 2, id="policy: its input, and the batch"),
        pytest.param(zeros, rollout, {"info_keys": ["taken"]}, 2, id="infos: no copy"),
        pytest.param(None, hooked, {}, 3, id="hook: before and after the step"),
        pytest.param(None, whole, {}, 4, id="episodes: batch, its steps, all steps, by env"),
    ],
)
def test_copies_of_an_observation(
    backend: Any, policy: Any, collect: Callable[[Any], Any], options: dict[str, Any], expected: int
) -> None:
    assert copies(backend, policy, collect, **options) == expected


def test_copies_of_an_observation_in_an_asynchronous_collector() -> None:
    """The result, the log, the policy's input, and the sorted batch."""
    assert copies(ShmemVectorEnv, None, rollout, AsyncDataCollector) == 4
