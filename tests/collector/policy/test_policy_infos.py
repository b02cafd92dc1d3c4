"""A policy gets the infos of the observations on which it acts, in every loop and on every backend.

The env raises an error for an action that its latest info does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector, rollout
from collector.cluster.rollout_actor import RolloutActor
from collector.policy.policy_call import signature_of
from tests.support.backends import BACKENDS, FULL, ON_RAY
from tests.support.seeded_envs import Failing, Told
from vecenv import DummyVectorEnv

KEYS = ("code", "action_mask", "first")


def by_key(obs: np.ndarray, action_mask: np.ndarray, code: np.ndarray, first: np.ndarray) -> Any:
    np.testing.assert_array_equal(obs, code)
    np.testing.assert_array_equal(obs[:, 1] == 0, first)
    assert (action_mask.dtype, code.dtype, first.dtype) == (np.int8, np.int64, bool)
    return action_mask.argmax(1) + 2


def by_info(obs: np.ndarray, info: np.ndarray) -> Any:
    assert info.shape == (len(obs),)
    np.testing.assert_array_equal(obs, np.stack([row["code"] for row in info]))
    assert not any({"final_obs", "final_info"} & row.keys() for row in info)
    return {"action": np.array([row["action_mask"].argmax() + 2 for row in info])}


class OnTensors(torch.nn.Module):
    def forward(self, obs: torch.Tensor, action_mask: torch.Tensor, code: torch.Tensor, state: Any = None) -> Any:
        torch.testing.assert_close(obs, code, rtol=0, atol=0)
        return action_mask.argmax(1) + 2, obs.float()


POLICIES: dict[str, Any] = {"keys": by_key, "info": by_info, "tensors": OnTensors()}


def batches_of(kind: Any, venv: Any, policy: Any, **options: Any) -> list[Any]:
    with kind(venv, policy, frames_per_batch=24, info_keys=KEYS, **options) as collector:
        return [collector.next() for _ in range(4)]


def episodes(venv: Any, policy: Any) -> list[Any]:
    with SyncDataCollector(venv, policy, frames_per_batch=24, info_keys=KEYS) as collector:
        venv.reset()
        collector.evaluate(3, eval_env=venv, seed=3)
        return [collector.collect(n_episode=7).batch]


LOOPS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "sync": partial(batches_of, SyncDataCollector),
    "seeds": partial(batches_of, SyncDataCollector, episode_seeds=EpisodeSeeds(0)),
    "few seeds": partial(batches_of, SyncDataCollector, episode_seeds=[(number, number) for number in range(14)]),
    "limit": partial(batches_of, SyncDataCollector, max_frames_per_traj=3),
    "reset": partial(batches_of, SyncDataCollector, reset_at_each_iter=True),
    "first frames": partial(batches_of, SyncDataCollector, init_random_frames=48),
    "async": partial(batches_of, AsyncDataCollector),
    "async, limit": partial(batches_of, AsyncDataCollector, max_frames_per_traj=3),
    "async, some": partial(batches_of, AsyncDataCollector),
    "episodes": episodes,
}


@pytest.mark.parametrize(
    "backend", [BACKENDS[0], BACKENDS[1], *(pytest.param(b, marks=FULL) for b in BACKENDS[2:]), ON_RAY]
)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_policy_gets_the_infos_of_the_observations_on_which_it_acts(loop: str, policy: str, backend: Any) -> None:
    options = {"wait_num": 2} if loop == "async, some" else {}
    with backend([partial(Told, steps) for steps in (4, 6, 9)], **options) as venv:
        batches = LOOPS[loop](venv, POLICIES[policy])
    for batch in batches:  # an extra is the info after the action
        mask = getattr(batch, "mask", np.ones(batch.reward.shape, bool))
        np.testing.assert_array_equal(batch.extras["code"][mask], batch.next.obs[mask])


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_the_info_of_an_env_that_was_restarted_counts(kind: Any, tmp_path: Any) -> None:
    fns = [partial(Failing, {None}, tmp_path, partial(Told, 9))] * 3  # without a seed, and once
    with kind(DummyVectorEnv(fns, on_error="restart"), by_key, frames_per_batch=24, info_keys=KEYS) as collector:
        for _ in range(6):
            collector.next()
        assert collector.stats().broken_episodes == 1


@pytest.mark.parametrize("seeds", [None, EpisodeSeeds(0)], ids=["", "seeds"])
def test_the_info_of_a_reset_by_the_worker_is_that_of_a_separate_reset(seeds: Any) -> None:
    """A policy cannot tell if the worker reset the env in the same round or in a separate round."""
    seen: list[set[str]] = []

    def policy(obs: np.ndarray, info: np.ndarray) -> Any:
        seen.extend({*row} for row in info)
        return by_info(obs, info)

    with SyncDataCollector([partial(Told, 4)] * 3, policy, frames_per_batch=30, episode_seeds=seeds) as collector:
        for _ in range(4):
            collector.next()
    assert all(keys == seen[0] for keys in seen)


def test_in_an_actor_of_a_cluster_too() -> None:
    actor = RolloutActor(0, 1)
    options = {"frames_per_batch": 24, "info_keys": KEYS}
    actor.start(cloudpickle.dumps(([partial(Told, 4)] * 3, by_key, options)), {}, [0], None, 0)
    _, columns = actor.collect(0, None, False)
    assert columns["reward"].shape == (8, 3)
    actor.close()


class Late(Told):
    """Env with `speed` in some infos of steps, and never in infos of resets."""

    def _returned(self) -> Any:
        obs, info = super()._returned()
        return obs, info | ({"speed": self._steps} if self._steps % 3 == 1 else {})


def test_an_entry_is_none_until_an_info_has_it_and_zero_for_the_envs_that_lack_it() -> None:
    seen: list[Any] = []

    def policy(obs: np.ndarray, action_mask: np.ndarray, speed: np.ndarray | None) -> Any:
        seen.append(None if speed is None else speed.tolist())
        return action_mask.argmax(1) + 2

    with SyncDataCollector(
        [partial(Late, 5)] * 2, policy, frames_per_batch=10, info_keys=("action_mask", "speed")
    ) as c:
        c.next()
    assert seen == [None, [1, 1], [0, 0], [0, 0], [4, 4]]


def test_an_entry_that_the_policy_returns_too_is_refused() -> None:
    def policy(obs: np.ndarray, code: np.ndarray, action_mask: np.ndarray) -> Any:
        return {"action": action_mask.argmax(1) + 2, "code": code}

    collector = SyncDataCollector([partial(Told, 5)] * 2, policy, frames_per_batch=10, info_keys=KEYS)
    with collector, pytest.raises(ValueError, match="info_keys has 'code', which a batch has already"):
        collector.next()


class TestSignatures:
    def test_entries_of_the_observation_take_precedence(self) -> None:
        space = spaces.Dict({"x": spaces.Discrete(2), "mask": spaces.Discrete(2), "info": spaces.Discrete(2)})
        found = signature_of(lambda x, mask, info, speed: 0, space, ("mask", "speed"))
        assert (found.keys, found.named) == (("x", "mask", "info"), ("speed",))

    def test_the_first_parameter_is_the_observation(self) -> None:
        assert signature_of(lambda info: 0, None, ("info",)) == signature_of(lambda obs: 0, None)
        assert signature_of(lambda mask: 0, None, ("mask",)) == signature_of(lambda obs: 0, None)
        assert signature_of(lambda env_id, state: 0, None).named == ("state",)

    def test_without_a_whole_observation_the_first_parameter_may_be_any(self) -> None:
        space = spaces.Dict({"x": spaces.Discrete(2)})
        for policy in (lambda state, info, x: 0, lambda *, state, info, x: 0):
            assert signature_of(policy, space)[:2] == (("x",), ("state", "info"))
        assert signature_of(lambda *obs, state: 0, space)[:2] == ((), ("state",))

    def test_state_and_env_id_keep_their_meaning(self) -> None:
        found = signature_of(lambda obs, state, env_id: 0, None, ("state", "env_id"))
        assert (found.named, found.info_keys) == (("state", "env_id"), ())

    def test_the_error_for_an_unknown_parameter_names_info_keys(self) -> None:
        with pytest.raises(TypeError, match=r"if info_keys names them, and info_keys is \('speed',\)"):
            signature_of(lambda obs, mask: 0, None, ("speed",))

    def test_infos_are_refused_in_a_compiled_policy(self) -> None:
        class Asks(torch.nn.Module):
            def forward(self, obs: Any, info: Any) -> Any:
                return obs

        with pytest.raises(ValueError, match="name the entries that the policy needs in info_keys"):
            SyncDataCollector([partial(Told, 5)], Asks(), frames_per_batch=5, compile_policy=True)


def test_rollout_passes_infos() -> None:
    with DummyVectorEnv([partial(Told, 5)] * 2) as venv:
        assert rollout(venv, 10, by_info, break_when_any_done=False).frames == 20
