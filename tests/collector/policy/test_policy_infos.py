"""A policy gets the infos of the observations on which it acts, in every loop and on every backend.

The env raises an error for an action that its latest info does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from collector import AsyncDataCollector, SyncDataCollector, rollout
from tests.support.backends import FULL, RAY
from tests.support.collector_envs import kinds
from tests.support.seeded_envs import Failing, Told
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv

KEYS = ("code", "action_mask", "first")


def by_key(obs: np.ndarray, action_mask: np.ndarray, code: np.ndarray, first: np.ndarray) -> Any:
    np.testing.assert_array_equal(obs, code)
    np.testing.assert_array_equal(obs[:, 1] == 0, first)
    assert (action_mask.dtype, code.dtype, first.dtype) == (np.int8, np.int64, bool)
    return action_mask.argmax(1) + 2


def by_info(obs: np.ndarray, info: np.ndarray) -> Any:
    """Act by whole infos, which have the same keys after a reset by the worker and after a separate reset."""
    assert info.shape == (len(obs),)
    np.testing.assert_array_equal(obs, np.stack([row["code"] for row in info]))
    assert {*map(frozenset, info)} == {frozenset((*KEYS, "env_id"))}
    return {"action": np.array([row["action_mask"].argmax() + 2 for row in info])}


class OnTensors(torch.nn.Module):
    def forward(self, obs: torch.Tensor, action_mask: torch.Tensor, code: torch.Tensor, state: Any = None) -> Any:
        torch.testing.assert_close(obs, code, rtol=0, atol=0)
        return action_mask.argmax(1) + 2, obs.float()


POLICIES: dict[str, Any] = {"keys": by_key, "info": by_info, "tensors": OnTensors()}


def batches(kind: Any, venv: Any, policy: Any, **options: Any) -> list[Any]:
    with kind(venv, policy, frames_per_batch=24, info_keys=KEYS, **options) as collector:
        return [collector.next() for _ in range(4)]


def episodes(venv: Any, policy: Any) -> list[Any]:
    with SyncDataCollector(venv, policy, frames_per_batch=24, info_keys=KEYS) as collector:
        venv.reset()
        collector.evaluate(3, eval_env=venv, seed=3)
        return [collector.collect(n_episode=7).batch]


LOOPS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "sync": partial(batches, SyncDataCollector, max_frames_per_traj=5),
    "few seeds": partial(batches, SyncDataCollector, episode_seeds=[(number, number) for number in range(14)]),
    "async, some": partial(batches, AsyncDataCollector, init_random_frames=24),
    "episodes": episodes,
}
"""Loops whose policy gets infos. tests/fuzz compares policies that act by infos with a loop by hand."""


@pytest.mark.parametrize(
    ("policy", "backend"),
    [
        *((policy, DummyVectorEnv) for policy in POLICIES),
        pytest.param("keys", ShmemVectorEnv, marks=FULL),
        pytest.param("keys", RayVectorEnv, marks=RAY),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_policy_gets_the_infos_of_the_observations_on_which_it_acts(loop: str, policy: str, backend: Any) -> None:
    options = {"wait_num": 2} if loop == "async, some" else {}
    with backend([partial(Told, steps) for steps in (4, 6, 9)], **options) as venv:
        found = LOOPS[loop](venv, POLICIES[policy])
    for batch in found:  # an extra is the info after the action
        mask = getattr(batch, "mask", np.ones(batch.reward.shape, bool))
        np.testing.assert_array_equal(batch.extras["code"][mask], batch.next.obs[mask])


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
@kinds
def test_the_info_of_an_env_that_was_restarted_counts(kind: Any, tmp_path: Any) -> None:
    fns = [partial(Failing, {None}, tmp_path, partial(Told, 9))] * 3  # without a seed, and once
    with kind(DummyVectorEnv(fns, on_error="restart"), by_key, frames_per_batch=24, info_keys=KEYS) as collector:
        for _ in range(6):
            collector.next()
        assert collector.stats().broken_episodes == 1


class Late(Told):
    """Env with `speed` in some infos of steps, and never in infos of resets."""

    def tell(self) -> Any:
        return super().tell() | ({"speed": self.taken} if self.taken % 3 == 1 else {})


def test_an_entry_is_none_until_an_info_has_it_and_zero_for_the_envs_that_lack_it() -> None:
    seen: list[Any] = []

    def policy(obs: np.ndarray, action_mask: np.ndarray, speed: np.ndarray | None) -> Any:
        seen.append(None if speed is None else speed.tolist())
        return action_mask.argmax(1) + 2

    keys = ("action_mask", "speed")
    with SyncDataCollector([partial(Late, 5)] * 2, policy, frames_per_batch=10, info_keys=keys) as collector:
        collector.next()
    assert seen == [None, [1, 1], [0, 0], [0, 0], [4, 4]]


def test_rollout_passes_infos() -> None:
    with DummyVectorEnv([partial(Told, 5)] * 2) as venv:
        assert rollout(venv, 10, by_info, break_when_any_done=False).frames == 20
