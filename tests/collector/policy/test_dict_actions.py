"""Policies for Dict and Tuple action spaces: trees of batched arrays, as vector action spaces sample them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, RandomPolicy, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.collector_envs import batch_of
from tests.support.countdown import MOVE, Drives
from vecenv import DummyVectorEnv, ShmemVectorEnv, nest

KINDS = [SyncDataCollector, AsyncDataCollector]


def tree(k: int) -> Any:
    return {"gear": np.arange(k) % 3, "wheel": (np.tile([0.25, -0.5], (k, 1)), np.ones((k, 2), np.int8))}


def assert_equal(left: Any, right: Any) -> None:
    for one, other in zip(nest.leaves(left), nest.leaves(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def policy(obs: np.ndarray) -> Any:
    return {"action": tree(len(obs)), "value": obs[:, 0]}


def check(batch: Any) -> None:
    """Check that each stored action has had its effect."""
    action, after = batch.action, batch.next.obs
    np.testing.assert_array_equal(action["gear"], after[..., 0])
    np.testing.assert_array_equal(action["wheel"][0], after[..., 1:])
    np.testing.assert_array_equal(batch.reward, action["gear"])
    leaves = action["gear"], action["wheel"][0], action["wheel"][1]
    assert [leaf.shape for leaf in leaves] == [batch.shape, (*batch.shape, 2), (*batch.shape, 2)]


@pytest.mark.parametrize(("kind", "venv"), [(SyncDataCollector, DummyVectorEnv), (AsyncDataCollector, ShmemVectorEnv)])
def test_a_tree_of_batched_arrays_reaches_the_envs_and_the_batch(kind: Any, venv: Any) -> None:
    with kind(venv([Drives] * 4), policy, frames_per_batch=48) as collector:
        batch = collector.next()
        check(batch)
        assert batch.action["wheel"][0].dtype == np.float32, "cast to the dtype of the space"
        np.testing.assert_array_equal(batch.extras["value"], batch.obs[..., 0])
        check(collector.collect(n_episode=6).batch)
        check(batch.flatten())
        assert batch.split_trajectories().action["gear"].shape[1] == 5
        tensors = batch.to("cpu").action["wheel"][0]
        assert torch.equal(tensors, torch.as_tensor(batch.action["wheel"][0]))


@FULL
def test_a_tensordict_has_the_tree_under_nested_keys() -> None:
    batch = batch_of([Drives] * 4, policy, 48)
    assert torch.equal(batch.to_tensordict()["action", "wheel", "0"], torch.as_tensor(batch.action["wheel"][0]))


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"compile_policy": {"backend": "eager"}}, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_and_distributions_too(kind: Any, options: Any) -> None:
    class Act(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> Any:
            k = len(obs)
            gear = torch.distributions.Categorical(logits=torch.tensor([[0.0, 0.0, 50.0]]).expand(k, 3))
            return {"action": {"gear": gear, "wheel": (torch.full((k, 2), 0.5), torch.ones(k, 2, dtype=torch.int8))}}

    batch = batch_of([Drives] * 4, Act(), 48, kind, backend="dummy", **options)
    check(batch)
    assert (batch.action["gear"] == 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_random_actions(kind: Any) -> None:
    options = {"frames_per_batch": 40, "init_random_frames": 40, "backend": "dummy"}
    with kind([Drives] * 4, policy, **options) as collector:
        collector.set_seed(3)
        first, second = collector.next(), collector.next()
    check(first)
    check(second)
    assert first.random.all()
    assert not second.random.any()
    assert set(np.unique(first.action["gear"])) == {0, 1, 2}
    with kind([Drives] * 4, frames_per_batch=40, backend="dummy") as collector:
        collector.set_seed(3)
        assert_equal(collector.next().action, first.action)


def test_random_actions_are_those_that_sample_gives() -> None:
    copies = [copy.deepcopy(MOVE) for _ in range(2)]
    for seed, space in enumerate(copies):
        space.seed(seed)
    random = RandomPolicy(copies)
    drawn = [random(None) for _ in range(100)]
    for env_id, space in enumerate(copies):
        for actions in drawn:
            assert_equal(
                {"gear": actions["gear"][env_id], "wheel": tuple(rows[env_id] for rows in actions["wheel"])},
                space.sample(),
            )
    with pytest.raises(TypeError, match="need spaces of one shape and dtype; env 1 has Dict"):
        RandomPolicy([MOVE, spaces.Dict(gear=spaces.Discrete(3))])


def test_rollout_draws_them() -> None:
    with DummyVectorEnv([Drives] * 3) as venv:
        check(rollout(venv, 12, break_when_any_done=False))


class Pairs(Drives):
    """`Drives` with the actions in a tuple, because a vector env reads a tuple as one action per env."""

    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.move(*action)


def pairs(obs: np.ndarray) -> Any:
    return {"action": (np.arange(len(obs)) % 3, np.full((len(obs), 2), 0.5))}


@pytest.mark.parametrize("actions", [pairs, None])
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in KINDS), (SyncDataCollector, {"episode_seeds": EpisodeSeeds(1)})],
)
def test_tuples_of_as_many_parts_as_envs_too(kind: Any, options: Any, actions: Any) -> None:
    batch = batch_of([Pairs] * 2, actions, 20, kind, backend="dummy", **options)
    np.testing.assert_array_equal(batch.action[0], batch.next.obs[..., 0])
    np.testing.assert_array_equal(batch.action[1], batch.next.obs[..., 1:])


def test_a_list_is_one_action_for_each_env() -> None:
    for env, space in ((Pairs, Pairs.action_space), (Drives, MOVE)):
        batch = batch_of([env] * 2, lambda obs, s=space: [s.sample() for _ in obs], 20)
        assert (batch.action.dtype, batch.action.shape) == (object, (2, 10))
        one = batch.action[1, 3]
        np.testing.assert_array_equal(one[0] if env is Pairs else one["gear"], batch.next.obs[1, 3, 0])


def test_episodes_with_seeds() -> None:
    with SyncDataCollector([Drives] * 2, policy, frames_per_batch=20, episode_seeds=EpisodeSeeds(1)) as collector:
        check(collector.next())
        assert not collector.everything_keyed


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ({"gear": np.zeros(2, int)}, ValueError, r"'action' as a dict with the keys \['gear'\].*'gear', 'wheel'\]"),
        ({**tree(2), "wheel": np.zeros((2, 2))}, ValueError, r"\"action\['wheel'\]\" as (?s:.*) must be a tuple of 2"),
        ({**tree(2), "gear": np.zeros(3, int)}, ValueError, r"\"action\['gear'\]\" of shape \(3,\) .* must be \(2,\)"),
        ({**tree(2), "gear": np.zeros((2, 2), int)}, ValueError, r"\(2, 2\); for the action space it must be \(2,\)"),
        ({**tree(2), "gear": np.zeros(2)}, TypeError, r"\"action\['gear'\]\" of dtype float64; .* must be int64"),
    ],
)
def test_what_does_not_fit_is_named(action: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        batch_of([Drives] * 2, lambda obs: {"action": action}, 20)
    with pytest.raises(TypeError, match="The actions of a Dict space are a dict under that key"):
        batch_of([Drives] * 2, lambda obs: action, 20)


def test_a_reward_of_nan_shows_the_action() -> None:
    message = r"reward of NaN in step 0 .* for the action \{'gear': np.int64\(0\)"
    with (
        SyncDataCollector([lambda: Drives(breaks=True)] * 2, policy, frames_per_batch=4) as collector,
        pytest.raises(ValueError, match=message),
    ):
        collector.next()
