"""Random actions respect the `action_mask` in observations and infos, in every loop and on every backend.

The env raises an error for an action that its latest mask does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, RandomPolicy, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.seeded_envs import Failing, Masked
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, nest

N = 3
BACKENDS = [
    DummyVectorEnv,
    ShmemVectorEnv,
    pytest.param(ThreadVectorEnv, marks=FULL),
    pytest.param(SubprocVectorEnv, marks=FULL),
]


def fixed(obs: Any) -> np.ndarray:
    """Policy without masks. Only the form of its outputs counts while actions are random."""
    return np.full(len(next(nest.leaves(obs))), 2)


def random_batches(collector: Any) -> list[Any]:
    with collector:
        return [collector.next() for _ in range(4)]


LOOPS: dict[str, Callable[[Any], list[Any]]] = {
    "sync": lambda venv: random_batches(SyncDataCollector(venv, frames_per_batch=N * 8)),
    "seeds": lambda venv: random_batches(
        SyncDataCollector(venv, frames_per_batch=N * 8, episode_seeds=EpisodeSeeds(0))
    ),
    "limit": lambda venv: random_batches(SyncDataCollector(venv, frames_per_batch=N * 8, max_frames_per_traj=5)),
    "reset": lambda venv: random_batches(SyncDataCollector(venv, frames_per_batch=N * 8, reset_at_each_iter=True)),
    "first frames": lambda venv: random_batches(
        SyncDataCollector(venv, fixed, frames_per_batch=N * 8, init_random_frames=N * 32)
    ),
    "episodes": lambda venv: [SyncDataCollector(venv, frames_per_batch=N).collect(n_episode=7).batch],
    "async": lambda venv: random_batches(AsyncDataCollector(venv, frames_per_batch=N * 8)),
    "async, some": lambda venv: random_batches(AsyncDataCollector(venv, frames_per_batch=N * 8 + 1)),
    "rollout": lambda venv: [rollout(venv, 20, break_when_any_done=False), rollout(venv, 20)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", ["obs", "info"])
@pytest.mark.parametrize("loop", LOOPS)
def test_only_allowed_actions_are_drawn(loop: str, place: str, backend: Any) -> None:
    options = {"wait_num": 2} if loop == "async, some" else {}
    with backend([partial(Masked, place)] * N, **options) as venv:
        batches = LOOPS[loop](venv)
    actions = np.concatenate(
        [batch.action[batch.mask] if hasattr(batch, "mask") else batch.action for batch in batches]
    )
    assert set(actions.ravel().tolist()) == {2, 3, 4, 5, 6}


def test_the_mask_of_a_reset_with_a_seed_counts() -> None:
    with SyncDataCollector([partial(Masked, "info")] * N, frames_per_batch=N * 3) as collector:
        for seed in range(10):
            collector.reset(seed=seed)
            collector.next()


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_the_mask_of_an_env_that_was_restarted_counts(kind: Any, tmp_path: Any) -> None:
    fns = [partial(Failing, {None}, tmp_path, partial(Masked, "info"))] * N  # without a seed, and once
    with kind(DummyVectorEnv(fns, on_error="restart"), frames_per_batch=N * 8) as collector:
        for _ in range(6):
            collector.next()
        assert collector.stats().broken_episodes == 1


def test_a_mask_in_an_info_takes_precedence_and_others_count_where_it_is_missing() -> None:
    policy = RandomPolicy([spaces.Discrete(4)] * 2)
    own, given = np.array([0, 1, 0, 0]), np.array([0, 0, 1, 0])
    for _ in range(20):
        assert policy({"action_mask": np.stack([own, own])}, masks=[None, given]).tolist() == [1, 2]
