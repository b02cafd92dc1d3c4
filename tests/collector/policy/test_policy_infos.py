"""A policy gets the infos of the observations on which it acts, in every loop and on every backend.

The env raises an error for an action that its latest info does not allow.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from collector import SyncDataCollector, rollout
from tests.support.backends import FULL, RAY
from tests.support.seeded_envs import Told
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


@pytest.mark.parametrize(
    ("policy", "backend"),
    [
        *((policy, DummyVectorEnv) for policy in POLICIES),
        pytest.param("keys", ShmemVectorEnv, marks=FULL),
        pytest.param("keys", RayVectorEnv, marks=RAY),
    ],
)
def test_the_policy_gets_the_infos_of_the_observations_on_which_it_acts(policy: str, backend: Any) -> None:
    """tests/fuzz plays policies of arrays that act by infos in each loop, and after failures."""
    options = {"frames_per_batch": 24, "max_frames_per_traj": 5, "info_keys": KEYS}
    with (
        backend([partial(Told, steps) for steps in (4, 6, 9)]) as venv,
        SyncDataCollector(venv, POLICIES[policy], **options) as collector,
    ):
        collector.evaluate(3, eval_env=venv, seed=3)
        for batch in (collector.next(), collector.next(), collector.collect(n_episode=7).batch):
            np.testing.assert_array_equal(batch.extras["code"], batch.next.obs, "an extra is the info after the action")


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
