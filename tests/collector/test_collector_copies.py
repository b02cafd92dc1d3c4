"""Number of copies that a collector makes of an observation, and the memory that these copies share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, RandomPolicy, SyncDataCollector
from collector.batch.rollout import FlatRollout
from tests.support.collector_envs import backends, countdowns, zeros
from tests.support.devices import ACCELERATOR, needs_accelerator
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


class Net(torch.nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(obs), dtype=torch.int64, device=obs.device)


@backends
@pytest.mark.parametrize(
    ("policy", "collect", "options", "expected"),
    [
        pytest.param(None, rollout, {}, 1, id="random: the batch"),
        pytest.param(None, rollout, {"episode_seeds": EpisodeSeeds}, 1, id="seeded: the batch"),
        pytest.param(zeros, rollout, {}, 2, id="policy: its input, and the batch"),
        pytest.param(Net(), rollout, {}, 2, id="module: its input, and the batch"),
        pytest.param(Net(), rollout, {"episode_seeds": EpisodeSeeds}, 2, id="seeded module: its input, and the batch"),
        pytest.param(zeros, rollout, {"info_keys": ["taken"]}, 2, id="infos: no copy"),
        pytest.param(None, hooked, {}, 3, id="hook: before and after the step"),
        pytest.param(None, whole, {}, 4, id="episodes: batch, its steps, all steps, by env"),
    ],
)
def test_copies_of_an_observation(
    backend: Any, policy: Any, collect: Callable[[Any], Any], options: dict[str, Any], expected: int
) -> None:
    options = {name: value(0) if value is EpisodeSeeds else value for name, value in options.items()}
    assert copies(backend, policy, collect, **options) == expected


def test_copies_of_an_observation_in_an_asynchronous_collector() -> None:
    """The result, the log, the policy's input, and the sorted batch."""
    assert copies(ShmemVectorEnv, None, rollout, AsyncDataCollector) == 4


@needs_accelerator
def test_a_policy_on_a_device_needs_one_copy_less() -> None:
    """The pinned buffer is reused, so only the batch remains on the host."""
    assert copies(ShmemVectorEnv, Net(), rollout, policy_device=ACCELERATOR) == 1


@backends
def test_results_belong_to_their_owner(backend: Any) -> None:
    """Steps of the program, batches and a hook's arrays share no memory with the arena, and never change."""
    kept: list[Any] = []
    venv = backend([Unique] * ENVS)
    with SyncDataCollector(venv, frames_per_batch=ENVS * STEPS) as collector:
        batch = collector.rollout()
        hooked = collector.collect(n_step=ENVS * STEPS, on_step=lambda step: kept.append(step)).batch
        arena = venv.engine.arena.obs
        assert not any(np.shares_memory(rows, arena) for rows in (batch.all_obs, batch.final_obs, hooked.all_obs))
        first = venv.step(np.zeros(ENVS, np.int64))
        before = first[0].copy()
        venv.step(np.zeros(ENVS, np.int64))
        np.testing.assert_array_equal(first[0], before)
    np.testing.assert_array_equal(np.stack([step.obs for step in kept], 1), hooked.obs)
    np.testing.assert_array_equal(np.stack([step.next_obs for step in kept], 1), hooked.next.obs)


class Keeps(RandomPolicy):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[np.ndarray] = []

    def __call__(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(obs)
        return super().__call__(obs, *args, **kwargs)


@backends
def test_a_random_policy_of_the_program_may_keep_its_inputs(backend: Any) -> None:
    venv = backend([Unique] * ENVS)
    policy = Keeps(venv.action_space)
    with SyncDataCollector(venv, policy, frames_per_batch=ENVS * STEPS) as collector:
        batch = collector.rollout()
    np.testing.assert_array_equal(np.stack(policy.seen, 1), batch.obs)


@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_a_policy_may_write_into_its_observations(kind: Any) -> None:
    """Also in the first round of a batch that continues episodes."""

    def policy(obs: np.ndarray) -> np.ndarray:
        obs[:] = -1
        return np.zeros(len(obs), np.int64)

    with kind(DummyVectorEnv(countdowns(5, 50)), policy, frames_per_batch=4) as collector:
        for _ in range(4):
            flat = collector.rollout().flatten()
            np.testing.assert_array_equal(flat.obs[:, 1], flat.step_count)
            np.testing.assert_array_equal(flat.next.obs[:, 1], flat.step_count + 1)


def test_a_step_that_the_program_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    venv = DummyVectorEnv([Unique] * ENVS)
    step = venv.step
    monkeypatch.setattr(venv, "step", lambda *args, **kwargs: calls.append(args) or step(*args, **kwargs))
    with SyncDataCollector(venv, frames_per_batch=ENVS * STEPS) as collector:
        collector.rollout()
    assert len(calls) == STEPS
